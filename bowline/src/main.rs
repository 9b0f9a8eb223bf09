//! temp
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]
mod identity;
mod node;
mod notify;
#[cfg(feature = "failpoints")]
mod steps;
mod up;
fn found(f: bowline_host::doctor::Finding) -> bowline_web::wire::Finding {
    bowline_web::wire::Finding {
        what: f.what.clone(),
        needed_for: f.needed_for.to_owned(),
        present: f.is_present(),
        detail: String::new(),
        required: false,
    }
}
fn main() {
    tracing_subscriber::fmt().init();
    let args: Vec<String> = std::env::args().collect();
    let get = |k: &str| args.iter().position(|a| a == k).map(|i| args[i + 1].clone());
    let setup = up::Setup {
        data: get("--data").unwrap().into(),
        csi: get("--csi").unwrap().parse().unwrap(),
        http: get("--http").map(|a| a.parse().unwrap()),
        node: bowline_core::NodeId::new(get("--node").unwrap()).unwrap(),
        peers: get("--peer").map(|p| bowline_core::NodeId::new(p).unwrap()).into_iter().collect(),
        max_volumes: Some(get("--max-volumes").map_or(128, |n| n.parse().unwrap())),
        policy: bowline_target::file::Policy {
            overcommit: get("--overcommit").map_or(100, |n| n.parse::<u32>().unwrap() * 100),
            ..Default::default()
        },
        path_roots: vec!["/".into()],
    };
    let rt = tokio::runtime::Runtime::new().unwrap();
    let r =
        rt.block_on(async { if args[1] == "node" { node::run(setup).await } else { up::run(setup).await } });
    if let Err(e) = r {
        println!("{e:#}");
        std::process::exit(1)
    }
}
