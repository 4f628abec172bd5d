//! Source text to tokens, by the rules of jinja2's lexer with trim_blocks and lstrip_blocks.

use std::rc::Rc;

use num_bigint::BigInt;

use super::error::{Error, Kind, Res};
use super::unicode;

/// The kind of a token; operators and delimiters are `Op` with their text.
#[derive(Clone, Debug, PartialEq)]
pub enum Tok {
    Data(Rc<str>),
    BlockBegin,
    BlockEnd,
    VarBegin,
    VarEnd,
    Name(Rc<str>),
    Str(Rc<str>),
    Int(BigInt),
    Float(f64),
    Op(&'static str),
    Eof,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub tok: Tok,
    pub line: u32,
}

/// Longest first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

pub fn syntax<T>(line: u32, message: impl Into<String>) -> Res<T> {
    let mut error = Error::boxed(Kind::Syntax, message);
    error.line = line;
    Err(error)
}

/// The delimiter that opens.
#[derive(Clone, Copy, PartialEq)]
enum Open {
    Raw,
    Block,
    Comment,
    Var,
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    line_starting: bool,
    tokens: Vec<Token>,
}

/// Line ends become "\n" and the last one is dropped, as jinja2 does.
fn normalized(source: &str) -> String {
    let mut text = source.replace("\r\n", "\n").replace('\r', "\n");
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

pub fn tokenize(source: &str) -> Res<Vec<Token>> {
    let source = normalized(source);
    let mut lexer =
        Lexer { source: &source, at: 0, line: 1, line_starting: true, tokens: Vec::new() };
    while lexer.at < lexer.source.len() {
        lexer.root()?;
    }
    lexer.push(Tok::Eof);
    Ok(lexer.tokens)
}

fn count_lines(text: &str) -> u32 {
    text.bytes().filter(|b| *b == b'\n').count() as u32
}

fn is_blank(text: &str) -> bool {
    !text.is_empty() && text.chars().all(unicode::is_space)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, tok: Tok) {
        self.tokens.push(Token { tok, line: self.line });
    }

    /// Moves over `len` bytes.
    fn skip(&mut self, len: usize) {
        let text = &self.source[self.at..self.at + len];
        self.line += count_lines(text);
        if let Some(last) = text.bytes().last() {
            self.line_starting = last == b'\n';
        }
        self.at += len;
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.skip(rest.len() - rest.trim_start_matches(unicode::is_space).len());
    }

    /// Where the next delimiter opens, which, and its sign ('-', '+' or none).
    fn next_open(&self) -> Option<(usize, Open, Option<char>)> {
        let bytes = self.source.as_bytes();
        let mut at = self.at;
        while at + 1 < bytes.len() {
            if bytes[at] == b'{' {
                let open = match bytes[at + 1] {
                    b'%' => Some(Open::Block),
                    b'#' => Some(Open::Comment),
                    b'{' => Some(Open::Var),
                    _ => None,
                };
                if let Some(open) = open {
                    let sign = bytes.get(at + 2).map(|b| char::from(*b));
                    let sign = sign.filter(|c| *c == '-' || *c == '+');
                    let is_raw = open == Open::Block && self.raw_begin(at).is_some();
                    return Some((at, if is_raw { Open::Raw } else { open }, sign));
                }
            }
            at += 1;
        }
        None
    }

    /// Length of a `{% raw %}` tag that begins at `at`.
    fn raw_begin(&self, at: usize) -> Option<usize> {
        let text = &self.source[at..];
        let mut rest = text.strip_prefix("{%")?;
        rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        rest = rest.trim_start_matches(unicode::is_space).strip_prefix("raw")?;
        rest = rest.trim_start_matches(unicode::is_space);
        rest = match rest.strip_prefix("-%}") {
            Some(rest) => rest.trim_start_matches(unicode::is_space),
            None => rest.strip_prefix("%}")?,
        };
        Some(text.len() - rest.len())
    }

    /// The data in front of an opening delimiter, without what its sign or lstrip_blocks takes.
    fn stripped<'t>(&self, text: &'t str, sign: Option<char>, is_var: bool) -> &'t str {
        if sign == Some('-') {
            return text.trim_end_matches(unicode::is_space);
        }
        if sign == Some('+') || is_var {
            return text;
        }
        let line_begin = text.rfind('\n').map_or(0, |i| i + 1);
        let begins_line = line_begin > 0 || self.line_starting;
        if begins_line && is_blank(&text[line_begin..]) {
            return &text[..line_begin];
        }
        text
    }

    fn push_data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Tok::Data(text.into()));
        }
    }

    fn root(&mut self) -> Res<()> {
        let Some((open_at, open, sign)) = self.next_open() else {
            let rest = self.rest();
            self.push_data(rest);
            self.skip(rest.len());
            return Ok(());
        };
        let text = &self.source[self.at..open_at];
        let data = self.stripped(text, sign, open == Open::Var);
        self.push_data(data);
        self.skip(text.len());
        let sign_len = usize::from(sign.is_some());
        match open {
            Open::Raw => self.raw(),
            Open::Comment => self.comment(2 + sign_len),
            Open::Block => {
                self.push(Tok::BlockBegin);
                self.skip(2 + sign_len);
                self.tag(true)
            }
            Open::Var => {
                self.push(Tok::VarBegin);
                self.skip(2 + sign_len);
                self.tag(false)
            }
        }
    }

    fn comment(&mut self, open_len: usize) -> Res<()> {
        let line = self.line;
        self.skip(open_len);
        let Some(end) = self.rest().find("#}") else {
            return syntax(line, "Missing end of comment tag");
        };
        let sign = self.rest()[..end].chars().next_back();
        self.skip(end + 2);
        self.after_block(sign.filter(|c| *c == '-' || *c == '+'));
        Ok(())
    }

    /// Skips the text that the end of a block or comment takes with it: blanks after '-', nothing
    /// after '+', else one line feed.
    fn after_block(&mut self, sign: Option<char>) {
        match sign {
            Some('-') => self.skip_blanks(),
            Some('+') => {}
            _ if self.rest().starts_with('\n') => self.skip(1),
            _ => {}
        }
    }

    fn raw(&mut self) -> Res<()> {
        let line = self.line;
        let begin = self.raw_begin(self.at).unwrap_or(0);
        self.skip(begin);
        let mut from = 0;
        while let Some(found) = self.rest()[from..].find("{%") {
            let at = from + found;
            let tag = &self.rest()[at + 2..];
            let sign = tag.chars().next().filter(|c| *c == '-' || *c == '+');
            let inner = &tag[usize::from(sign.is_some())..];
            let word = inner.trim_start_matches(unicode::is_space);
            let after =
                word.strip_prefix("endraw").map(|w| w.trim_start_matches(unicode::is_space));
            let end = after.and_then(|w| {
                let close = w.chars().next().filter(|c| *c == '-' || *c == '+');
                let w = &w[usize::from(close.is_some())..];
                w.strip_prefix("%}").map(|rest| (rest, close))
            });
            let Some((rest, close)) = end else {
                from = at + 2;
                continue;
            };
            let data = self.stripped(&self.rest()[..at], sign, false);
            let length = self.rest().len() - rest.len();
            self.push_data(data);
            self.skip(length);
            self.after_block(close);
            return Ok(());
        }
        syntax(line, "Missing end of raw directive")
    }

    /// The tokens up to the end of a `{% %}` or `{{ }}`.
    fn tag(&mut self, is_block: bool) -> Res<()> {
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            if open.is_empty() && self.close(is_block) {
                return Ok(());
            }
            let Some(c) = self.rest().chars().next() else {
                let what =
                    if is_block { "end of statement block" } else { "end of print statement" };
                return syntax(
                    self.line,
                    format!("unexpected end of template, expected '{what}'."),
                );
            };
            if unicode::is_space(c) {
                self.skip_blanks();
            } else if c.is_ascii_digit() {
                self.number()?;
            } else if c == '_' || c.is_alphanumeric() {
                self.name()?;
            } else if c == '\'' || c == '"' {
                self.string(c)?;
            } else {
                self.operator(c, &mut open)?;
            }
        }
    }

    fn close(&mut self, is_block: bool) -> bool {
        let rest = self.rest();
        let end = if is_block { "%}" } else { "}}" };
        let (sign, len) = match rest.strip_prefix(['-', '+']) {
            Some(after) if after.starts_with(end) => (rest.chars().next(), 3),
            _ if rest.starts_with(end) => (None, 2),
            _ => return false,
        };
        if sign == Some('+') && !is_block {
            return false;
        }
        self.push(if is_block { Tok::BlockEnd } else { Tok::VarEnd });
        self.skip(len);
        if is_block {
            self.after_block(sign);
        } else if sign == Some('-') {
            self.skip_blanks();
        }
        true
    }

    fn operator(&mut self, c: char, open: &mut Vec<&'static str>) -> Res<()> {
        let Some(op) = OPERATORS.iter().find(|op| self.rest().starts_with(**op)) else {
            return syntax(self.line, format!("unexpected char {c:?} at {}", self.at));
        };
        match *op {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" => match open.pop() {
                Some(expected) if expected == *op => {}
                Some(expected) => {
                    return syntax(self.line, format!("unexpected '{op}', expected '{expected}'"))
                }
                None => return syntax(self.line, format!("unexpected '{op}'")),
            },
            _ => {}
        }
        self.push(Tok::Op(op));
        self.skip(op.len());
        Ok(())
    }

    fn name(&mut self) -> Res<()> {
        let rest = self.rest();
        let len =
            rest.len() - rest.trim_start_matches(|c: char| c == '_' || c.is_alphanumeric()).len();
        self.push(Tok::Name(rest[..len].into()));
        self.skip(len);
        Ok(())
    }

    fn number(&mut self) -> Res<()> {
        let rest = self.rest();
        let after_dot = self.source[..self.at].ends_with('.');
        if let Some(len) = float_len(rest).filter(|_| !after_dot) {
            let digits = rest[..len].replace('_', "");
            self.push(Tok::Float(digits.parse().unwrap_or(f64::INFINITY)));
            self.skip(len);
            return Ok(());
        }
        let (radix, prefix) = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0b") => (2, 2),
            Some("0o") => (8, 2),
            Some("0x") => (16, 2),
            _ => (10, 0),
        };
        let digits_len = digits_len(&rest[prefix..], radix);
        let (prefix, radix, mut len) = match digits_len {
            0 => (0, 10, 1),
            len => (prefix, radix, len),
        };
        if radix == 10 && rest.starts_with('0') {
            len = rest.len() - rest.trim_start_matches(['0', '_']).len();
            len = rest[..len].trim_end_matches('_').len();
        }
        let digits = rest[prefix..prefix + len].replace('_', "");
        if digits.len() > 4300 {
            return syntax(self.line, "an integer of more than 4300 digits");
        }
        let value = BigInt::parse_bytes(digits.as_bytes(), radix).unwrap_or_default();
        self.push(Tok::Int(value));
        self.skip(prefix + len);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Res<()> {
        let rest = &self.rest()[1..];
        let mut end = None;
        let mut escaped = false;
        for (i, c) in rest.char_indices() {
            if escaped {
                escaped = false;
            } else if c == '\\' {
                escaped = true;
            } else if c == quote {
                end = Some(i);
                break;
            }
        }
        let Some(end) = end else {
            return syntax(self.line, format!("unexpected char {quote:?} at {}", self.at));
        };
        let text = unescape(&rest[..end], self.line)?;
        self.push(Tok::Str(text.as_str().into()));
        self.skip(end + 2);
        Ok(())
    }
}

/// Length of a run of digits with single '_' between them (after a prefix also in front).
fn digits_len(text: &str, radix: u32) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    loop {
        let skip = usize::from(bytes.get(at) == Some(&b'_') && (at > 0 || radix != 10));
        match bytes.get(at + skip) {
            Some(b) if char::from(*b).is_digit(radix) => at += skip + 1,
            _ => return at,
        }
    }
}

fn float_len(text: &str) -> Option<usize> {
    let whole = digits_len(text, 10);
    let mut len = whole;
    let mut is_float = false;
    if text[len..].starts_with('.') {
        let fraction = digits_len(&text[len + 1..], 10);
        if fraction > 0 {
            len += 1 + fraction;
            is_float = true;
        }
    }
    if let Some(exponent) = text[len..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let digits = digits_len(&exponent[sign..], 10);
        if digits > 0 {
            return Some(len + 1 + sign + digits);
        }
    }
    is_float.then_some(len)
}

/// Python's escapes in a string literal; a surrogate alone becomes U+FFFD.
fn unescape(text: &str, line: u32) -> Res<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(kind) = chars.next() else { break };
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        match kind {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(kind),
            'a' => out.push('\x07'),
            'b' => out.push('\x08'),
            'f' => out.push('\x0c'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\x0b'),
            '0'..='7' => {
                let mut value = kind.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(next) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    value = value * 8 + next;
                    chars.next();
                }
                out.push(char::from_u32(value).unwrap_or('\u{fffd}'));
            }
            'x' | 'u' | 'U' => {
                let hex: String = chars.by_ref().take(digits).collect();
                let value = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
                let Some(value) = value.filter(|v| *v <= 0x10ffff) else {
                    return syntax(line, format!("a string has the broken escape '\\{kind}{hex}'"));
                };
                out.push(char::from_u32(value).unwrap_or('\u{fffd}'));
            }
            'N' => {
                return syntax(line, "a string names a character by \\N, which is not supported")
            }
            _ => out.extend(['\\', kind]),
        }
    }
    Ok(out)
}
