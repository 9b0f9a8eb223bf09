//! The kinds that Bowline has in Kubernetes, and the keys it uses there.
