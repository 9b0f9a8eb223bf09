//! Several pieces of work side by side, not too many at once: each may wait for a disk.

use std::sync::{Mutex, PoisonError};

/// Does all of them in threads, `most` at once, and comes back with what became of each, in no order. Where no thread can be had, there are fewer.
pub(crate) fn abreast<T: Send, R: Send>(all: Vec<T>, most: usize, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = all.len().min(most);
    let (rest, ended) = (Mutex::new(all.into_iter()), Mutex::new(Vec::new()));
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    let some = || {
        while let Some(one) = next() {
            let done = work(one);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push(done);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if let Err(error) =
                std::thread::Builder::new().name("abreast".to_owned()).spawn_scoped(scope, some)
            {
                tracing::warn!(%error, "no thread can be started; there are fewer");
                break;
            }
        }
        some();
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed check is a panic")]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_are_done_and_only_so_many_at_once() {
        let (now, highest, together) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(3));
        let mut done = abreast((0..9).collect(), 3, |one: u32| {
            highest.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Three are needed to pass.
            together.wait();
            now.fetch_sub(1, Ordering::SeqCst);
            one
        });
        done.sort_unstable();
        assert_eq!((done, highest.into_inner()), ((0..9).collect(), 3));
        assert!(abreast(Vec::<u32>::new(), 3, |one| one).is_empty());
    }
}
