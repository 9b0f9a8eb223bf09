use std::io::Write;

/// Says what a test covered: on its output, and in the file that `BOWLINE_SUMMARY` names, which `make test` shows at the end.
#[allow(clippy::print_stdout, reason = "that is what it is for")]
pub fn say(line: &str) {
    println!("{line}");
    if let Some(path) = std::env::var_os("BOWLINE_SUMMARY") {
        let mut file = std::fs::File::options().create(true).append(true).open(path).unwrap();
        // In one piece: several suites write at once.
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}
