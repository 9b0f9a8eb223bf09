//! What the device understands of a line: the commands that the adapter sends, and no others.

/// One command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    AddDisk(Vec<Setting>),
    SetDisks { of: Vec<Condition>, to: Vec<Setting> },
    RemoveDisks(Vec<Condition>),
    PrintDisks(Vec<Condition>),
    PrintFiles(Vec<Condition>),
    RemoveFiles(Vec<Condition>),
}

/// `key=value`; the column says where it stands, for complaints.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) column: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    /// `[find …]`.
    Found(Vec<Condition>),
}

/// `key=value` or `key~pattern`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) key: String,
    pub(super) is_pattern: bool,
    pub(super) value: String,
}

/// Every command of a line, or the device's complaint. A line is understood whole before anything of it is done.
pub(super) fn parse(line: &str) -> Result<Vec<Command>, String> {
    let mut reader = Reader { chars: line.chars().collect(), at: 0 };
    let mut commands = Vec::new();
    loop {
        reader.blanks();
        match reader.peek() {
            None => return Ok(commands),
            Some(';' | '\n' | '\r') => reader.at += 1,
            Some(_) => commands.push(reader.command()?),
        }
    }
}

struct Reader {
    chars: Vec<char>,
    at: usize,
}

impl Reader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn take(&mut self, wanted: char) -> bool {
        let there = self.peek() == Some(wanted);
        self.at += usize::from(there);
        there
    }

    fn blanks(&mut self) {
        loop {
            match (self.peek(), self.chars.get(self.at + 1)) {
                (Some(' ' | '\t'), _) => self.at += 1,
                // A backslash joins lines.
                (Some('\\'), Some('\n')) => self.at += 2,
                _ => return,
            }
        }
    }

    fn word(&mut self) -> String {
        let rest = &self.chars[self.at..];
        let word: String =
            rest.iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '-' || **c == '_').collect();
        self.at += word.len();
        word
    }

    fn complain<T>(&self, what: &str, at: usize) -> Result<T, String> {
        let before = &self.chars[..at.min(self.chars.len())];
        let line = before.iter().filter(|c| **c == '\n').count() + 1;
        let column = before.iter().rev().take_while(|c| **c != '\n').count() + 1;
        Err(format!("{what} (line {line} column {column})"))
    }

    fn command(&mut self) -> Result<Command, String> {
        let start = self.at;
        if !self.take('/') {
            return self.complain("bad command name", start);
        }
        let menu = self.word();
        self.blanks();
        self.take('/');
        let at = self.at;
        let verb = self.word();
        let command = match (menu.as_str(), verb.as_str()) {
            ("disk", "add") => Command::AddDisk(self.settings()?),
            ("disk", "set") => Command::SetDisks { of: self.find()?, to: self.settings()? },
            ("disk", "remove") => Command::RemoveDisks(self.find()?),
            ("file", "remove") => Command::RemoveFiles(self.find()?),
            ("disk", "print") => Command::PrintDisks(self.print()?),
            ("file", "print") => Command::PrintFiles(self.print()?),
            ("disk" | "file", verb) => return self.complain(&format!("bad command name {verb}"), at),
            (menu, _) => return self.complain(&format!("bad command name {menu}"), start + 1),
        };
        self.blanks();
        match self.peek() {
            None | Some(';' | '\n' | '\r') => Ok(command),
            Some(_) => self.complain("expected end of command", self.at),
        }
    }

    fn print(&mut self) -> Result<Vec<Condition>, String> {
        self.blanks();
        if self.word() != "detail" {
            return Err("the simulator knows print only with detail".to_owned());
        }
        self.blanks();
        let at = self.at;
        match self.word().as_str() {
            "" => Ok(vec![]),
            "where" => self.conditions(),
            _ => self.complain("expected end of command", at),
        }
    }

    /// `[find key=value …]`, with or without `where`.
    fn find(&mut self) -> Result<Vec<Condition>, String> {
        self.blanks();
        let at = self.at;
        if !self.take('[') {
            return Err(format!(
                "the simulator knows items only as [find …], and this is {}",
                self.chars[at..].iter().collect::<String>()
            ));
        }
        self.blanks();
        let at = self.at;
        if self.word() != "find" {
            return self.complain("syntax error", at);
        }
        self.blanks();
        let before = self.at;
        if self.word() != "where" {
            self.at = before;
        }
        let conditions = self.conditions()?;
        self.blanks();
        if self.take(']') { Ok(conditions) } else { self.complain("syntax error", self.at) }
    }

    fn conditions(&mut self) -> Result<Vec<Condition>, String> {
        let mut conditions = Vec::new();
        loop {
            self.blanks();
            if matches!(self.peek(), None | Some(']' | ';' | '\n' | '\r')) {
                return Ok(conditions);
            }
            let at = self.at;
            let key = self.word();
            if key == "and" && !conditions.is_empty() && self.peek() == Some(' ') {
                continue;
            }
            let is_pattern = match self.peek() {
                Some('=') if !key.is_empty() => false,
                Some('~') if !key.is_empty() => true,
                _ => return self.complain("syntax error", at),
            };
            self.at += 1;
            conditions.push(Condition { key, is_pattern, value: self.text()? });
        }
    }

    fn settings(&mut self) -> Result<Vec<Setting>, String> {
        let mut settings: Vec<Setting> = Vec::new();
        loop {
            self.blanks();
            if matches!(self.peek(), None | Some(';' | '\n' | '\r')) {
                return Ok(settings);
            }
            let at = self.at;
            let key = self.word();
            if key.is_empty() || !self.take('=') {
                return self.complain("expected end of command", at);
            }
            if settings.iter().any(|setting| setting.key == key) {
                return self.complain(&format!("already have value for {key}"), at);
            }
            let value =
                if self.peek() == Some('[') { Value::Found(self.find()?) } else { Value::Text(self.text()?) };
            settings.push(Setting { key, value, column: at + 1 });
        }
    }

    /// A value: in quotes, or as it stands if it has nothing special in it.
    fn text(&mut self) -> Result<String, String> {
        if self.take('"') {
            return self.quoted();
        }
        let rest = &self.chars[self.at..];
        let plain = |c: &&char| c.is_ascii_alphanumeric() || "-_./:,*+@%".contains(**c);
        let text: String = rest.iter().take_while(plain).collect();
        self.at += text.len();
        let ends = matches!(self.peek(), None | Some(' ' | '\t' | ']' | ';' | '\n' | '\r'));
        if text.is_empty() || !ends { self.complain("syntax error", self.at) } else { Ok(text) }
    }

    fn quoted(&mut self) -> Result<String, String> {
        let mut text = Vec::new();
        loop {
            let Some(c) = self.peek() else { return self.complain("expected closing quote", self.at) };
            self.at += 1;
            match c {
                '"' => return Ok(String::from_utf8_lossy(&text).into_owned()),
                '\\' => text.push(self.escape()?),
                // A variable, and nobody has set it.
                '$' => {
                    self.word();
                }
                c => text.extend(c.to_string().bytes()),
            }
        }
    }

    /// One byte: what is not ASCII is written as several.
    fn escape(&mut self) -> Result<u8, String> {
        let at = self.at;
        let Some(c) = self.peek() else { return self.complain("expected closing quote", at) };
        self.at += 1;
        Ok(match c {
            '"' => b'"',
            '\\' => b'\\',
            '$' => b'$',
            '?' => b'?',
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            '_' => b' ',
            'a' => 0x07,
            'b' => 0x08,
            'f' => 0x0c,
            'v' => 0x0b,
            '0'..='9' | 'A'..='F' => {
                let digits: String = self.chars[at..].iter().take(2).collect();
                self.at += 1;
                let Ok(byte) = u8::from_str_radix(&digits, 16) else {
                    return self.complain("bad escape sequence", at);
                };
                byte
            }
            _ => return self.complain("bad escape sequence", at),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(key: &str, value: &str) -> Condition {
        Condition { key: key.into(), is_pattern: false, value: value.into() }
    }

    #[test]
    fn conditions_are_joined_by_spaces_or_and() {
        let both = || vec![equal("slot", "pvc-1"), equal("nvme-tcp-server-nqn", "nqn.x:e 7\"")];
        for line in [
            r#"/disk remove [find slot=pvc-1 nvme-tcp-server-nqn="nqn.x:e 7\""]"#,
            r#"/disk remove [find slot="pvc-1" and nvme-tcp-server-nqn="nqn.x:e\_7\22"]"#,
            r#"/disk/remove [ find where slot="pvc-1" nvme-tcp-server-nqn="nqn.x:e 7\"" ] "#,
        ] {
            assert_eq!(parse(line), Ok(vec![Command::RemoveDisks(both())]), "{line}");
        }
        assert_eq!(
            parse("/disk print detail where slot~\"pvc\""),
            Ok(vec![Command::PrintDisks(vec![Condition {
                key: "slot".into(),
                is_pattern: true,
                value: "pvc".into()
            }])])
        );
    }

    #[test]
    fn a_space_in_a_path_becomes_a_second_parameter() {
        let said = parse("/disk add type=file file-path=/pool/my disk.img slot=x");
        assert_eq!(said, Err("expected end of command (line 1 column 40)".into()));
        let Ok(commands) = parse(r#"/disk add type=file file-path="/pool/my disk.img""#) else { panic!() };
        let Command::AddDisk(settings) = &commands[0] else { panic!() };
        assert_eq!(settings[1].value, Value::Text("/pool/my disk.img".into()));
    }

    #[test]
    fn what_is_not_quoted_can_smuggle_a_command_in() {
        let commands =
            parse("/disk remove [find slot=a]; /disk remove [find slot=b]\n/file print detail").unwrap();
        assert_eq!(commands.len(), 3);
        assert_eq!(parse(r#"/disk remove [find slot="a]; /disk remove [find slot=b"]"#).unwrap().len(), 1);
    }

    #[test]
    fn what_is_not_understood_is_complained_about() {
        for (line, complaint) in [
            ("disk print", "bad command name (line 1 column 1)"),
            ("/disk format x", "bad command name format (line 1 column 7)"),
            ("/ip address print", "bad command name ip (line 1 column 2)"),
            ("/disk print detail slot=x", "expected end of command (line 1 column 20)"),
            ("/disk remove [find slot=x", "syntax error (line 1 column 26)"),
            ("/disk print detail where slot=\"x", "expected closing quote (line 1 column 33)"),
            ("/disk print detail where slot=", "syntax error (line 1 column 31)"),
            ("/disk add slot=a slot=b", "already have value for slot (line 1 column 18)"),
            ("/disk add slot={a}", "syntax error (line 1 column 16)"),
        ] {
            assert_eq!(parse(line), Err(complaint.to_owned()), "{line}");
        }
    }

    #[test]
    fn a_dollar_in_quotes_is_a_variable_that_nobody_has_set() {
        let Ok(commands) = parse(r#"/disk print detail where slot="a$b\$c""#) else { panic!() };
        assert_eq!(commands[0], Command::PrintDisks(vec![equal("slot", "a$c")]));
    }

    #[test]
    fn an_escape_in_hexadecimal_is_one_byte() {
        let Ok(commands) = parse(r#"/disk print detail where slot="a\5B\C3\A4""#) else { panic!() };
        assert_eq!(commands[0], Command::PrintDisks(vec![equal("slot", "a[ä")]));
    }
}
