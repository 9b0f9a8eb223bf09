//! Processes inside the nodes, as this machine counts them.

use super::ClusterLab;
use std::fs;

impl ClusterLab {
    /// The process on one of the nodes whose command line has all these words.
    pub fn find_process(&self, words: &[&str]) -> Option<u32> {
        let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.filter(|pid| has_words(*pid, words)).find(|pid| self.is_on_a_node(*pid))
    }

    /// Sends a process that [`Self::find_process`] found a signal, such as `KILL`; whether it was still there.
    pub fn signal(&self, pid: u32, signal: &str) -> bool {
        assert!(pid > 1, "{pid} is no process of a node");
        let kill =
            std::process::Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).output();
        kill.unwrap().status.success()
    }

    fn is_on_a_node(&self, pid: u32) -> bool {
        let mut above = Some(pid);
        while let Some(pid) = above {
            if self.nodes().iter().any(|node| node.init() == pid) {
                return true;
            }
            above = parent(pid);
        }
        false
    }
}

fn has_words(pid: u32, words: &[&str]) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.iter().all(|word| line.split(|byte| *byte == 0).any(|part| part == word.as_bytes()))
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok().filter(|parent| *parent > 1)
}
