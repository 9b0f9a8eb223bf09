//! The CSI services on a [`Catalog`]. Each call is parsed in its first line, asks the catalog, and answers in the words of the
//! contract; nothing is decided here.

mod answer;
mod controller;
mod group;
mod identity;
mod lists;
mod parameters;
mod publish;
mod volumes;

use std::time::Duration;
use tonic::{Request, Response, Status};

use crate::Catalog;

pub use publish::{publish_context, refused, ticket, ticket_of, withdrawal};

/// The driver's name, in Kubernetes and in every ticket of a CSI call.
pub const DRIVER: &str = "bowline.storage";

/// In a volume's context: the filesystem that it gets when it is first mounted.
pub const FS: &str = "bowline.storage/fs";

/// In a publish context: `true` if what is deleted in the filesystem is given back at once.
pub const DISCARD: &str = "bowline.storage/discard";

/// How long a call waits if its caller does not say: less than the sidecars' 15 s would cut their call off.
const WAIT: Duration = Duration::from_secs(15);

/// `Identity`.
#[derive(Clone)]
pub struct IdentityService {
    catalog: Catalog,
}

/// `Controller`.
#[derive(Clone)]
pub struct ControllerService {
    catalog: Catalog,
}

/// `GroupController`.
#[derive(Clone)]
pub struct GroupService {
    catalog: Catalog,
}

macro_rules! on_a_catalog {
    ($($service:ident),*) => {
        $(impl $service {
            /// The service on this catalog.
            pub fn new(catalog: Catalog) -> Self {
                Self { catalog }
            }
        })*
    };
}

on_a_catalog!(IdentityService, ControllerService, GroupService);

/// Answers a call, and counts it.
async fn answer<T, E: Into<Status>>(
    catalog: &Catalog,
    rpc: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<Response<T>, Status> {
    let began = tokio::time::Instant::now();
    let answer = work.await.map(Response::new).map_err(Into::into);
    let code = answer.as_ref().err().map_or(tonic::Code::Ok, Status::code);
    catalog.inner().metrics.call(rpc, code, began.elapsed().as_secs_f64());
    answer
}

/// How long a call may take: nine tenths of what its caller gives it, so that the caller hears our reason and not its own
/// time-out.
fn patience<T>(request: &Request<T>) -> Duration {
    let header = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
    header.and_then(grpc_timeout).map_or(WAIT, |given| given / 10 * 9)
}

/// The header `grpc-timeout`: up to eight digits and a unit. Anything else is as if it were not there.
fn grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_patience_is_read_from_its_header() {
        for (text, expected) in [
            ("15S", Some(Duration::from_secs(15))),
            ("1500m", Some(Duration::from_millis(1500))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("7u", Some(Duration::from_micros(7))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("+1S", None),
            ("100000000S", None),
            ("15s", None),
            ("1\u{e9}", None),
        ] {
            assert_eq!(grpc_timeout(text), expected, "{text:?}");
        }
        let mut request = Request::new(());
        assert_eq!(patience(&request), WAIT);
        request.set_timeout(Duration::from_secs(10));
        assert_eq!(patience(&request), Duration::from_secs(9));
    }
}
