//! What surrounds the engine in Kubernetes: lease, attacher, nodes, wishes of people, adoption.

pub mod taint;
