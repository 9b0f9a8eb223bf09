//! What surrounds the engine in Kubernetes: lease, attacher, nodes, wishes of people, adoption.

pub mod door;
pub mod review;
pub mod taint;
