//! Text as the device's command line writes it.

use std::fmt::Write;

/// A value between quotes. Whatever is in it stays one value: nothing in it ends the quotes, begins a second parameter or is
/// carried out.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | b'$' | b'?' => {
                quoted.push('\\');
                quoted.push(char::from(byte));
            }
            b'\n' => quoted.push_str("\\n"),
            b'\r' => quoted.push_str("\\r"),
            b'\t' => quoted.push_str("\\t"),
            b'[' | b']' | 0..0x20 | 0x7f.. => {
                let _ = write!(quoted, "\\{byte:02X}");
            }
            _ => quoted.push(char::from(byte)),
        }
    }
    quoted.push('"');
    quoted
}

/// What stands between quotes, with the escapes undone; one that is not known stands for itself.
pub(super) fn unquote(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes().peekable();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let Some(escaped) = rest.next() else {
            bytes.push(b'\\');
            break;
        };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        // Escapes in hexadecimal have capitals, so that `\a` and `\b` can be something else.
        let high = digit(escaped).filter(|_| !escaped.is_ascii_lowercase());
        let low = rest.peek().copied().filter(|byte| !byte.is_ascii_lowercase()).and_then(digit);
        match (escaped, high, low) {
            (_, Some(high), Some(low)) => {
                rest.next();
                bytes.push(high << 4 | low);
            }
            (b'n', ..) => bytes.push(b'\n'),
            (b'r', ..) => bytes.push(b'\r'),
            (b't', ..) => bytes.push(b'\t'),
            (b'_', ..) => bytes.push(b' '),
            (other, ..) => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_in_a_value_is_carried_out_or_ends_it() {
        for (text, quoted) in [
            ("pvc-1", r#""pvc-1""#),
            ("/storage pool/a.img", r#""/storage pool/a.img""#),
            ("a\" slot=b", r#""a\" slot=b""#),
            ("a\\", r#""a\\""#),
            ("$x", r#""\$x""#),
            ("[/disk remove 0]", r#""\5B/disk remove 0\5D""#),
            ("a\r\n/system reset", r#""a\r\n/system reset""#),
            ("ä", r#""\C3\A4""#),
            ("", r#""""#),
        ] {
            assert_eq!(quote(text), quoted);
        }
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_one_line_and_read_again(text in "\\PC*|[\\x00-\\x7f]*") {
            let quoted = quote(&text);
            prop_assert!(quoted.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
            let inner = &quoted[1..quoted.len() - 1];
            prop_assert_eq!(unquote(inner), text);
            let bare = inner.replace("\\\\", "").replace("\\\"", "");
            prop_assert!(!bare.contains('"') && !bare.ends_with('\\'));
        }

        #[test]
        fn no_text_breaks_it(text in "\\PC*") {
            unquote(&text);
        }
    }
}
