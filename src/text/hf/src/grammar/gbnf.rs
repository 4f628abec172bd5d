//! Grammars in GBNF, the form of llama.cpp and of vLLM's examples, as grammars in Lark's form.
//!
//! A rule is `name ::= alternatives`; the answer is a text of the rule `root`. An item is "text",
//! [class], `.`, a name or (a group), with `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}` after it. A
//! comment begins with `#`. A line break is a blank: a rule ends where the next one begins.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use crate::Failure;

/// Nesting of groups; the reader recurses.
const MAX_DEPTH: usize = 64;

/// Whether the first line that says something begins a rule of GBNF.
pub fn is_gbnf(text: &str) -> bool {
    let mut reader = Reader::new(text);
    reader.skip_blanks();
    reader.name().is_some() && {
        reader.skip_blanks();
        reader.rest().starts_with("::=")
    }
}

/// The grammar in Lark's form. Names become numbers there, so that none is a word of Lark.
pub fn to_lark(text: &str) -> Result<String, Failure> {
    let mut reader = Reader::new(text);
    let mut lark = String::new();
    loop {
        reader.skip_blanks();
        if reader.rest().is_empty() {
            break;
        }
        let line = reader.line();
        let Some(name) = reader.rule_name() else {
            return Err(reader.fault("a rule 'name ::= ..' must begin here"));
        };
        let number = reader.number_of(&name);
        if !reader.defined.insert(number) {
            return Err(fault_at(line, &format!("the rule '{name}' is there twice")));
        }
        let body = reader.alternatives(0)?;
        let _ = writeln!(lark, "r{number}: {body}");
    }
    if let Some((name, line)) = reader.undefined() {
        return Err(fault_at(line, &format!("there is no rule '{name}'")));
    }
    match reader.numbers.get("root") {
        Some(root) => Ok(format!("start: r{root}\n{lark}")),
        None => Err(Failure::invalid("the grammar: there is no rule 'root', which the answer is")),
    }
}

fn fault_at(line: usize, what: &str) -> Failure {
    Failure::invalid(format!("the grammar: line {line}: {what}"))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// A place that `line` was asked for, and its line: the next one is near.
    last_line: Cell<(usize, usize)>,
    numbers: HashMap<String, usize>,
    /// By number: the line that names the rule first.
    first_lines: Vec<usize>,
    defined: HashSet<usize>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Reader {
            text,
            at: 0,
            last_line: Cell::new((0, 1)),
            numbers: HashMap::new(),
            first_lines: Vec::new(),
            defined: HashSet::new(),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn line(&self) -> usize {
        let (place, line) = self.last_line.get();
        let line = if place <= self.at {
            line + self.text[place..self.at].matches('\n').count()
        } else {
            line - self.text[self.at..place].matches('\n').count()
        };
        self.last_line.set((self.at, line));
        line
    }

    fn fault(&self, what: &str) -> Failure {
        fault_at(self.line(), what)
    }

    fn skip_blanks(&mut self) {
        while let Some(c) = self.peek() {
            if c == '#' {
                let end = self.rest().find('\n').unwrap_or(self.rest().len());
                self.at += end;
            } else if c.is_whitespace() {
                self.next();
            } else {
                return;
            }
        }
    }

    fn name(&mut self) -> Option<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let end = self.rest().find(|c| !is_part(c)).unwrap_or(self.rest().len());
        if end == 0 {
            return None;
        }
        let name = self.rest()[..end].to_string();
        self.at += end;
        Some(name)
    }

    /// The name of a rule that begins here, after which the reader stands behind `::=`.
    fn rule_name(&mut self) -> Option<String> {
        let begin = self.at;
        let name = self.name();
        self.skip_blanks();
        if name.is_some() && self.rest().starts_with("::=") {
            self.at += 3;
            return name;
        }
        self.at = begin;
        None
    }

    fn begins_rule(&mut self) -> bool {
        let begin = self.at;
        let begins = self.rule_name().is_some();
        self.at = begin;
        begins
    }

    fn number_of(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.first_lines.len();
        self.first_lines.push(self.line());
        self.numbers.insert(name.to_string(), number);
        number
    }

    /// A rule that is named and not there, and the line that names it.
    fn undefined(&self) -> Option<(&str, usize)> {
        let missing = self.numbers.iter().filter(|(_, number)| !self.defined.contains(number));
        missing
            .map(|(name, number)| (name.as_str(), self.first_lines[*number]))
            .min_by_key(|(_, line)| *line)
    }

    fn alternatives(&mut self, depth: usize) -> Result<String, Failure> {
        if depth > MAX_DEPTH {
            return Err(self.fault(&format!("groups are nested deeper than {MAX_DEPTH} levels")));
        }
        let mut all = Vec::new();
        let mut has_empty = false;
        loop {
            match self.sequence(depth)? {
                items if items.is_empty() => has_empty = true,
                items => all.push(items.join(" ")),
            }
            self.skip_blanks();
            if self.peek() != Some('|') {
                break;
            }
            self.next();
        }
        if all.is_empty() {
            return Ok("\"\"".to_string());
        }
        let joined = all.join(" | ");
        Ok(if has_empty { format!("({joined})?") } else { joined })
    }

    fn sequence(&mut self, depth: usize) -> Result<Vec<String>, Failure> {
        let mut items = Vec::new();
        loop {
            self.skip_blanks();
            let ends = match self.peek() {
                None | Some('|' | ')') => true,
                Some(_) => self.begins_rule(),
            };
            if ends {
                return Ok(items);
            }
            if let Some(item) = self.item(depth)? {
                items.push(item);
            }
        }
    }

    /// An item with its repetition; nothing for an empty text.
    fn item(&mut self, depth: usize) -> Result<Option<String>, Failure> {
        let item = match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => Some(self.class()?),
            Some('.') => {
                self.next();
                Some("/(?s:.)/".to_string())
            }
            Some('(') => {
                self.next();
                let inner = self.alternatives(depth + 1)?;
                if self.next() != Some(')') {
                    return Err(self.fault("a ')' is missing"));
                }
                Some(format!("({inner})"))
            }
            _ => match self.name() {
                Some(name) => Some(format!("r{}", self.number_of(&name))),
                None => {
                    let c = self.peek().unwrap_or(' ');
                    return Err(self.fault(&format!("'{}' begins no item", c.escape_default())));
                }
            },
        };
        let repetition = self.repetition()?;
        Ok(item.map(|item| format!("{item}{repetition}")))
    }

    /// Behind an item, without a blank between; repeated ones (`a+?`) are put around the first.
    fn repetition(&mut self) -> Result<String, Failure> {
        match self.peek() {
            Some(c @ ('*' | '+' | '?')) => {
                self.next();
                Ok(c.to_string())
            }
            Some('{') => {
                let Some(end) = self.rest().find('}') else {
                    return Err(self.fault("a '}' is missing"));
                };
                let inner: String = self.rest()[1..end].split_whitespace().collect();
                let mut bounds = inner.splitn(2, ',');
                let is_count = |text: &str| {
                    !text.is_empty() && text.len() < 7 && text.bytes().all(|b| b.is_ascii_digit())
                };
                let least = bounds.next().unwrap_or("");
                let most = bounds.next();
                if !is_count(least) || !most.is_none_or(|most| most.is_empty() || is_count(most)) {
                    return Err(self.fault("a repetition is {m}, {m,} or {m,n}"));
                }
                self.at += end + 1;
                Ok(format!("{{{inner}}}"))
            }
            _ => Ok(String::new()),
        }
    }

    fn literal(&mut self) -> Result<Option<String>, Failure> {
        self.next();
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.fault("a '\"' is missing")),
                Some('"') => {
                    self.next();
                    break;
                }
                Some(_) => text.push(self.character()?),
            }
        }
        if text.is_empty() {
            return Ok(None);
        }
        serde_json::to_string(&text).map(Some).map_err(|e| self.fault(&e.to_string()))
    }

    fn class(&mut self) -> Result<String, Failure> {
        self.next();
        let mut regex = "/[".to_string();
        if self.peek() == Some('^') {
            self.next();
            regex.push('^');
        }
        let mut is_empty = true;
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.fault("a ']' is missing")),
                Some(']') => {
                    self.next();
                    break;
                }
                Some(_) => {}
            }
            is_empty = false;
            let first = self.character()?;
            let mut rest = self.rest().chars();
            let is_range = rest.next() == Some('-') && rest.next() != Some(']');
            let last = if is_range {
                self.next();
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.fault("a range of characters runs backwards"));
            }
            let _ = write!(regex, "\\x{{{:x}}}-\\x{{{:x}}}", first as u32, last as u32);
        }
        if is_empty {
            return Err(self.fault("a class of characters is empty"));
        }
        regex.push_str("]/");
        Ok(regex)
    }

    /// One character of a text or a class, which may be escaped.
    fn character(&mut self) -> Result<char, Failure> {
        let c = self.next().unwrap_or('\\');
        if c != '\\' {
            return Ok(c);
        }
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if !c.is_alphanumeric() => return Ok(c),
            _ => {
                return Err(self.fault("an escape is \\n, \\r, \\t, \\xHH, \\uHHHH or \\UHHHHHHHH"))
            }
        };
        let code = self.rest().get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => {
                Err(self.fault(&format!("{digits} hexadecimal digits of a character must follow")))
            }
        }
    }
}
