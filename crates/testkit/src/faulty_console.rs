use async_trait::async_trait;
use bowline_target::rds::{Console, ConsoleError, Said};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::Dice;
use crate::routeros::RouterOs;

/// What becomes of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// It is not sent.
    NotSent,
    /// It is lost on its way.
    Lost,
    /// It is carried out, and the answer is lost.
    NoAnswer,
    /// Half of it is carried out.
    Half,
    /// It is carried out after the next one.
    Late,
    /// It is carried out, and the output is cut off in the middle.
    CutOff,
}

impl Mishap {
    /// Every one.
    pub const ALL: [Self; 6] =
        [Self::NotSent, Self::Lost, Self::NoAnswer, Self::Half, Self::Late, Self::CutOff];
}

/// A way to a simulated device on which commands meet mishaps, and take no time otherwise. A handle: clones are the same way.
#[derive(Clone)]
pub struct FaultyConsole {
    /// What is at its end.
    pub device: RouterOs,
    way: Arc<Mutex<Way>>,
}

struct Way {
    is_up: bool,
    /// The mishap to come, and after how many commands.
    mishap: Option<(usize, Mishap)>,
    late: Vec<String>,
    sent: Vec<String>,
    dice: Dice,
}

impl Way {
    /// What becomes of the next command.
    fn draw(&mut self) -> Option<Mishap> {
        match self.mishap.take()? {
            (0, mishap) => Some(mishap),
            (left, mishap) => {
                self.mishap = Some((left - 1, mishap));
                None
            }
        }
    }
}

impl FaultyConsole {
    /// A way to this device on which all is well.
    pub fn new(device: RouterOs) -> Self {
        let way = Way { is_up: true, mishap: None, late: vec![], sent: vec![], dice: Dice::new(0) };
        Self { device, way: Arc::new(Mutex::new(way)) }
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap()
    }

    /// Whose turn it is when several send at once is decided by this seed from now on.
    pub fn seed(&self, seed: u64) {
        self.way().dice = Dice::new(seed);
    }

    /// After so many others, a command has this mishap.
    pub fn go_wrong(&self, after: usize, mishap: Mishap) {
        self.way().mishap = Some((after, mishap));
    }

    /// Nothing goes wrong any more; tells whether something would have.
    pub fn calm(&self) -> bool {
        self.way().mishap.take().is_some()
    }

    /// The device can be reached, or it cannot.
    pub fn set_up(&self, is_up: bool) {
        self.way().is_up = is_up;
    }

    /// What was sent since this was asked last.
    pub fn sent(&self) -> Vec<String> {
        std::mem::take(&mut self.way().sent)
    }

    /// Carries out what is still on its way.
    pub fn settle(&self) {
        let late = std::mem::take(&mut self.way().late);
        for line in late {
            self.device.enter(&line);
        }
    }
}

#[async_trait]
impl Console for FaultyConsole {
    async fn run(&self, command: &str) -> Result<Said, ConsoleError> {
        // Others get their turn between any two commands, or several.
        let others = self.way().dice.below(3);
        for _ in 0..=others {
            tokio::task::yield_now().await;
        }
        let mut way = self.way();
        let not_sent = || Err(ConsoleError::NotSent { error: "there is no connection".to_owned() });
        let unanswered = || Err(ConsoleError::Unanswered { error: "the connection was lost".to_owned() });
        if !way.is_up {
            return not_sent();
        }
        let (mishap, late) = (way.draw(), std::mem::take(&mut way.late));
        if mishap != Some(Mishap::NotSent) {
            way.sent.push(command.to_owned());
        }
        let answer = match mishap {
            None => Ok(self.device.enter(command).into()),
            Some(Mishap::NotSent) => not_sent(),
            Some(Mishap::Lost) => unanswered(),
            Some(Mishap::NoAnswer) => {
                self.device.enter(command);
                unanswered()
            }
            Some(Mishap::Half) => {
                self.device.enter_half(command);
                unanswered()
            }
            Some(Mishap::Late) => {
                way.late.push(command.to_owned());
                unanswered()
            }
            Some(Mishap::CutOff) => {
                let Said { mut text, .. } = self.device.enter(command).into();
                text.truncate(text.len() / 2);
                Ok(Said { text, status: None })
            }
        };
        for line in late {
            self.device.enter(&line);
        }
        answer
    }
}
