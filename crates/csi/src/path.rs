//! Paths on the node that the kubelet names.

use crate::field::{At, InvalidField, Problem};
use std::fmt;
use std::path::Path;

/// What Linux accepts as one path (PATH_MAX without the closing NUL) and as one name in it (NAME_MAX).
const PATH_BYTES: usize = 4095;
const NAME_BYTES: usize = 255;

/// An absolute path in its shortest spelling: no `.`, no `..`, no doubled or closing slash, no control character,
/// and not the root. Two spellings of one path are one value, so that a retry is recognised.
///
/// It says nothing about what is there: whoever opens it must not follow symbolic links.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsolutePath(String);

impl AbsolutePath {
    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path for the filesystem.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    pub(crate) fn parse(at: At<'_>, value: &str) -> Result<Self, InvalidField> {
        if value.is_empty() {
            return Err(at.is(Problem::Missing));
        }
        at.at_most(PATH_BYTES, value.len())?;
        at.only(value, "control characters are not allowed", |character| !character.is_control())?;
        if !value.starts_with('/') {
            return Err(at.is(Problem::Form("is not an absolute path")));
        }
        let mut path = String::with_capacity(value.len());
        for name in value.split('/').filter(|name| !matches!(*name, "" | ".")) {
            if name == ".." {
                return Err(at.is(Problem::Form("contains '..'")));
            }
            at.at_most(NAME_BYTES, name.len())?;
            path.push('/');
            path.push_str(name);
        }
        if path.is_empty() { Err(at.is(Problem::Form("is the root directory"))) } else { Ok(Self(path)) }
    }

    pub(crate) fn parse_optional(at: At<'_>, value: &str) -> Result<Option<Self>, InvalidField> {
        if value.is_empty() { Ok(None) } else { Self::parse(at, value).map(Some) }
    }
}

impl AsRef<Path> for AbsolutePath {
    fn as_ref(&self) -> &Path {
        self.as_path()
    }
}

impl fmt::Display for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for AbsolutePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<String, String> {
        let path = AbsolutePath::parse(At::field("target_path"), value);
        path.map(|path| path.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn one_path_has_one_spelling() {
        for (value, expected) in [
            ("/var/lib/kubelet/pods/1/mount", "/var/lib/kubelet/pods/1/mount"),
            ("/a//b", "/a/b"),
            ("//a/./b/", "/a/b"),
            ("/a/...", "/a/..."),
            ("/a b;$(c)", "/a b;$(c)"),
        ] {
            assert_eq!(parse(value).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_could_lead_elsewhere_is_refused() {
        let long = format!("/{}", "x/".repeat(2048));
        for (value, why) in [
            ("", "target_path is required"),
            ("a/b", "target_path is not an absolute path"),
            ("./a", "target_path is not an absolute path"),
            ("/", "target_path is the root directory"),
            ("/./", "target_path is the root directory"),
            ("/a/../b", "target_path contains '..'"),
            ("/..", "target_path contains '..'"),
            ("/a\0b", "target_path contains '\\0'; control characters are not allowed"),
            ("/a\nb", "target_path contains '\\n'; control characters are not allowed"),
            (&long, "target_path has 4097 bytes; at most 4095 are allowed"),
            (&format!("/{}", "x".repeat(256)), "target_path has 256 bytes; at most 255 are allowed"),
        ] {
            assert_eq!(parse(value).unwrap_err(), why);
        }
    }
}
