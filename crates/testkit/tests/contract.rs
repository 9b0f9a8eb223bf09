//! The simulated target keeps the contract of every target.

use bowline_core::VolumeId;
use bowline_testkit::SimTarget;

#[tokio::test]
async fn the_simulated_target_keeps_the_contract() {
    let volumes: Vec<VolumeId> = (1..=5).map(|n| VolumeId::new(format!("v{n}")).unwrap()).collect();
    bowline_target::contract::run(&SimTarget::new("sim"), &volumes).await;
}
