use async_trait::async_trait;
use bowline_target::rds::{Console, ConsoleError, Said};
use std::sync::Arc;

use crate::Fate;

/// A way to a device on which commands meet their fate.
pub struct FaultyConsole<C: ?Sized = dyn Console> {
    inner: Arc<C>,
    fate: Arc<Fate>,
}

impl<C: ?Sized> FaultyConsole<C> {
    /// Stands in front of `inner`.
    pub fn new(inner: Arc<C>, fate: Arc<Fate>) -> Self {
        Self { inner, fate }
    }
}

#[async_trait]
impl<C: Console + ?Sized> Console for FaultyConsole<C> {
    async fn run(&self, command: &str) -> Result<Said, ConsoleError> {
        let lost = || Err(ConsoleError::Unanswered { error: "lost on purpose".to_owned() });
        self.fate.meet(command.to_owned(), self.inner.run(command), lost).await
    }
}
