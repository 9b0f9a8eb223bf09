//! How far a copy is: a bar on a terminal, one line per ten seconds elsewhere.

use bowline_web::wire::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tokio::time::Instant;

use super::Console;
use crate::size::Size;

/// How often a terminal is told, and how often anything else.
const BAR: Duration = Duration::from_millis(300);
const LINE: Duration = Duration::from_secs(10);

/// What is shown while something is copied.
pub(super) struct Shown {
    what: String,
    bar: Option<ProgressBar>,
    next: Instant,
    every: Duration,
}

impl Shown {
    pub(super) fn begin(what: &str) -> Self {
        let every = if std::io::stderr().is_terminal() { BAR } else { LINE };
        Self { what: what.to_owned(), bar: None, next: Instant::now() + every, every }
    }

    /// Waits until it is time to look again.
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep_until(self.next).await;
        self.next = Instant::now() + self.every;
    }

    pub(super) fn tell(&mut self, progress: Progress, console: &mut Console) {
        if self.every == LINE {
            console.note(&line(&self.what, progress));
            return;
        }
        let what = self.what.clone();
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(progress.total);
            let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(what);
            bar
        });
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    }

    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn line(what: &str, progress: Progress) -> String {
    let Progress { done, total } = progress;
    let percent = u128::from(done) * 100 / u128::from(total.max(1));
    let percent = if total == 0 { String::new() } else { format!(" of {} ({percent}%)", Size(total)) };
    format!("{what}: {} copied{percent}", Size(done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_it_is_also_when_nobody_knows_how_far_it_goes() {
        let line = |done, total| line("copy", Progress { done, total });
        assert_eq!(line(1 << 30, 4 << 30), "copy: 1Gi copied of 4Gi (25%)");
        assert_eq!(line(0, 0), "copy: 0 copied");
        assert_eq!(line(u64::MAX, u64::MAX), "copy: 15.9Ei copied of 15.9Ei (100%)");
    }
}
