//! Where in a request something is wrong, and what.

use bowline_core::IdError;
use std::fmt;

/// A field that cannot be accepted, by its path in the contract. Its text never holds the field's value: any string
/// may be a secret that was put into the wrong place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidField {
    /// The path, for example `volume_capabilities[0].access_mode.mode`.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is required and was not given.
    #[error("is required")]
    Missing,
    /// More bytes than it may have.
    #[error("has {bytes} bytes; at most {max} are allowed")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        max: usize,
    },
    /// A character that is not allowed there.
    #[error("contains {character:?}; {rule}")]
    Character {
        /// The first offending character.
        character: char,
        /// What is allowed.
        rule: &'static str,
    },
    /// Its form is not the one required.
    #[error("{0}")]
    Form(&'static str),
    /// A number that no value of the enum has, or the one that means "not given".
    #[error("is {value}; that is none of its known values")]
    UnknownValue {
        /// The number.
        value: i32,
    },
    /// Negative where only sizes or counts make sense.
    #[error("is {value}; it must not be negative")]
    Negative {
        /// The number.
        value: i64,
    },
    /// A range with nothing in it.
    #[error("asks for at least {required} and at most {limit} bytes")]
    EmptyRange {
        /// The least number of bytes.
        required: u64,
        /// The greatest.
        limit: u64,
    },
    /// The same value as an earlier entry of the list.
    #[error("repeats an earlier entry")]
    Repeated,
}

/// A place in a request while it is parsed; becomes a path only if something is wrong.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    parent: Option<&'a At<'a>>,
    name: &'a str,
    index: Option<usize>,
}

impl<'a> At<'a> {
    pub(crate) const fn field(name: &'a str) -> Self {
        Self { parent: None, name, index: None }
    }

    pub(crate) fn child<'b>(&'b self, name: &'b str) -> At<'b> {
        At { parent: Some(self), name, index: None }
    }

    pub(crate) fn entry(self, index: usize) -> Self {
        Self { index: Some(index), ..self }
    }

    pub(crate) fn is(self, problem: Problem) -> InvalidField {
        InvalidField { field: self.to_string(), problem }
    }

    pub(crate) fn required<T>(self, value: Option<T>) -> Result<T, InvalidField> {
        value.ok_or_else(|| self.is(Problem::Missing))
    }

    /// Refuses more bytes than `max`.
    pub(crate) fn at_most(self, max: usize, bytes: usize) -> Result<(), InvalidField> {
        if bytes > max { Err(self.is(Problem::TooLong { bytes, max })) } else { Ok(()) }
    }

    /// Refuses a text with a character that `is_allowed` does not accept.
    pub(crate) fn only(
        self,
        text: &str,
        rule: &'static str,
        is_allowed: impl Fn(char) -> bool,
    ) -> Result<(), InvalidField> {
        match text.chars().find(|character| !is_allowed(*character)) {
            Some(character) => Err(self.is(Problem::Character { character, rule })),
            None => Ok(()),
        }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(self.name)?;
        self.index.map_or(Ok(()), |index| write!(f, "[{index}]"))
    }
}

impl From<IdError> for Problem {
    fn from(error: IdError) -> Self {
        match error {
            IdError::Empty { .. } => Self::Missing,
            IdError::TooLong { bytes, max, .. } => Self::TooLong { bytes, max },
            IdError::Character { character, .. } => {
                Self::Character { character, rule: "allowed is printable ASCII without '^', '/' and spaces" }
            }
            IdError::Dots { .. } => Self::Form("would be read as a directory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_path_of_its_field() {
        let capabilities = At::field("volume_capabilities").entry(2);
        let mode = capabilities.child("access_mode");
        let error = mode.child("mode").is(Problem::UnknownValue { value: 9 });
        assert_eq!(
            error.to_string(),
            "volume_capabilities[2].access_mode.mode is 9; that is none of its known values"
        );
    }
}
