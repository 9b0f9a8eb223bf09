use super::*;

fn programs(limit: Duration) -> Programs {
    Programs { time_limit: limit, ..Programs::default() }
}

const LONG: Duration = Duration::from_mins(1);
const NONE: &[&str] = &[];

#[test]
fn a_program_sees_only_its_path_its_locale_and_no_list_of_devices() {
    let said = programs(LONG).run("env", NONE).unwrap().stdout;
    let names: Vec<_> = said.lines().filter_map(|line| line.split_once('=')).collect();
    assert_eq!(names.len(), 3, "{said}");
    assert!(names.contains(&("BLKID_FILE", "/dev/null")), "{said}");
    assert!(names.contains(&("LC_ALL", "C")) && names.iter().any(|(name, _)| *name == "PATH"), "{said}");
}

#[test]
fn arguments_reach_it_as_they_are() {
    let said = programs(LONG).run("echo", &["$(id)", "; rm -rf x", "a\nb", "*"]).unwrap();
    assert_eq!(said.stdout, "$(id) ; rm -rf x a\nb *");
}

#[test]
fn what_it_said_is_in_the_error() {
    let error = programs(LONG).run("ls", &["/no/such/place"]).unwrap_err();
    let CommandError::Failed { program, finished } = &error else { panic!("{error}") };
    assert_eq!((program.as_str(), finished.code), ("ls", 2));
    assert!(error.to_string().contains("/no/such/place"), "{error}");
    assert!(matches!(programs(LONG).run("no-such-program", NONE), Err(CommandError::Missing { .. })));
    assert_eq!(programs(LONG).run_any("false", NONE).unwrap().code, 1);
}

/// Whether any process was started with this argument.
fn runs(argument: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
}

#[test]
fn a_time_out_that_killed_only_the_leader_left_its_children_behind() {
    // `find` waits for a `sleep` that it started, in the same process group.
    let argument = format!("97531.{}", std::process::id());
    let before = Instant::now();
    let error = programs(Duration::from_millis(300))
        .run("find", &["/proc", "-maxdepth", "0", "-exec", "sleep", &argument, ";"])
        .unwrap_err();
    assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
    assert!(before.elapsed() < PATIENCE, "it does not wait for the children's pipes");
    // SIGKILL was sent to the whole group; a process that is not our child goes away in its own time.
    while runs(&argument) {
        assert!(before.elapsed() < Duration::from_secs(30), "sleep {argument} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_flood_of_output_is_bounded_and_does_not_block_the_program() {
    let error = programs(Duration::from_millis(300)).run("yes", NONE).unwrap_err();
    assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
    let finished = programs(LONG).run("seq", &["1", "200000"]).unwrap();
    assert!(finished.stdout.len() <= KEPT + '…'.len_utf8(), "{}", finished.stdout.len());
    assert!(finished.stdout.starts_with('…') && finished.stdout.ends_with("200000"), "the end is kept");
}

#[test]
fn no_zombie_is_left() {
    for limit in [LONG, Duration::from_nanos(1)] {
        let _ = programs(limit).run("true", NONE);
    }
    let task = std::process::id();
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after = stat.rsplit_once(") ").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        stat.contains("(true)") && after.starts_with(&format!("Z {task} "))
    });
    assert_eq!(children.count(), 0);
}
