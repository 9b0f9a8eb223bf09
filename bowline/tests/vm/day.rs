//! One day of a site: what needs all of it and breaks none of it, one after the other in the same machines. `BOWLINE_ROW` chooses.

use crate::{deaths, gone, many, renumber, unheard, upgrade};
use bowline_testkit::vm::{Kernel, Site};
use std::pin::Pin;
use std::time::Instant;

type Scenario = for<'a> fn(&'a mut Site) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("disks that swap their names keep their bytes", |site| {
        Box::pin(renumber::disks_that_swap_their_names_keep_their_bytes(site))
    }),
    ("a writer notices nothing of an upgrade", |site| {
        Box::pin(upgrade::a_writer_notices_nothing_of_an_upgrade(site))
    }),
    ("many volumes converge and leave nothing", |site| {
        Box::pin(many::many_volumes_converge_and_leave_nothing(site))
    }),
    ("a death at a step in the kernel is mended by the same call", |site| {
        Box::pin(deaths::a_death_at_a_step_in_the_kernel_is_mended_by_the_same_call(site))
    }),
    ("a hold stays while the target is not heard", |site| {
        Box::pin(unheard::a_hold_stays_while_the_target_is_not_heard(site))
    }),
    ("a node lets go of a target that is gone", |site| {
        Box::pin(gone::a_node_lets_go_of_a_target_that_is_gone(site))
    }),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_site_lives_through_its_day_on_linux_6_1() {
    live(Kernel::Debian12).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-vm has the time"]
async fn a_site_lives_through_its_day_on_linux_6_12() {
    live(Kernel::Debian13).await;
}

async fn live(kernel: Kernel) {
    let Some(mut site) = crate::site(kernel) else { return };
    let only = std::env::var("BOWLINE_ROW").unwrap_or_default();
    for (name, scenario) in SCENARIOS.iter().filter(|(name, _)| name.contains(&only)) {
        let begun = Instant::now();
        println!("{name}");
        scenario(&mut site).await;
        println!("  lived through in {:.1} s", begun.elapsed().as_secs_f64());
    }
}
