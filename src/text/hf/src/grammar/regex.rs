//! Regular expressions in the form that llguidance takes.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// Whose rules an expression follows where languages of expressions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A schema's `pattern`: ECMA-262's. `\d` and `\w` are ASCII, `\s` is what ECMA-262 lists, `.`
    /// ends no line, and brackets in a class are characters of it.
    Ecma,
    /// An expression for an answer: llguidance's, with `\d`, `\w` and `\s` as ASCII.
    Ascii,
}

/// The characters of `.` in ECMA-262. llguidance's leaves out the line feed alone.
const ECMA_DOT: &str = r"[^\n\r\u2028\u2029]";
/// `\s` and `\S` in ECMA-262: its WhiteSpace and LineTerminator. llguidance's `\s` is Unicode's
/// White_Space, which has U+0085 and lacks U+FEFF.
const ECMA_SPACE: &str = r"[\t-\r\x20\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF]";
const ECMA_NO_SPACE: &str =
    r"[^\t-\r\x20\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000\uFEFF]";

/// `pattern` by the rules of `dialect`. Refuses what the rewrite of llguidance would change in
/// meaning: it drops a backslash at the end, and writes a line break and the space of `\s` as
/// characters, which the flag `x` would skip.
pub fn rewritten(pattern: &str, dialect: Dialect) -> Result<String, String> {
    let is_ecma = dialect == Dialect::Ecma;
    let has_plain_dots =
        !is_ecma || pattern.match_indices('(').any(|(at, _)| sets(&pattern[at..], 's'));
    let (mut reader, mut out) = (Reader { rest: pattern, dialect }, String::new());
    while let Some(c) = reader.next() {
        match c {
            '\\' => out.push_str(reader.escape()?.text),
            '[' => reader.class(&mut out)?,
            '(' if sets(reader.rest, 'x') => {
                return Err("the flag x is not supported; leave out the spaces and comments that \
                            it skips"
                    .to_string());
            }
            // llguidance reads a group of this name as look-ahead.
            '(' if reader.skip("(?<stop>") || reader.skip("(?P<stop>") => out.push_str("(?:"),
            '.' if !has_plain_dots => {
                reader.take(1);
                out.push_str(ECMA_DOT);
            }
            c => out.push_str(reader.take(c.len_utf8())),
        }
    }
    Ok(regex_to_lark(&out, if is_ecma { "dw" } else { "dws" }))
}

/// As `rewritten`; refuses what is no regular expression of llguidance either.
pub fn checked(pattern: &str, dialect: Dialect) -> Result<String, String> {
    let rewritten = rewritten(pattern, dialect)?;
    let ast = RegexAst::SearchRegex(rewritten.clone());
    RegexBuilder::new().mk(&ast).map_err(|e| {
        let reason = e.to_string();
        reason.lines().last().unwrap_or_default().to_string()
    })?;
    Ok(rewritten)
}

/// A character or a set of them, as it is written.
struct Atom<'a> {
    text: &'a str,
    /// Whether it is a set, which begins and ends no range.
    is_set: bool,
}

/// The rest of an expression.
struct Reader<'a> {
    rest: &'a str,
    dialect: Dialect,
}

impl<'a> Reader<'a> {
    fn next(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let is_there = self.rest.starts_with(prefix);
        self.take(if is_there { prefix.len() } else { 0 });
        is_there
    }

    /// The escape that begins here. The parser would take `\<` and `\>` for the ends of a word.
    fn escape(&mut self) -> Result<Atom<'a>, String> {
        let Some(c) = self.rest[1..].chars().next() else {
            return Err("it ends with a backslash, which escapes nothing".to_string());
        };
        let begin = 1 + c.len_utf8();
        if matches!(c, '<' | '>') {
            return Ok(Atom { text: &self.take(begin)[1..], is_set: false });
        }
        let after = &self.rest[begin..];
        let num_digits =
            |most: usize| after.bytes().take(most).take_while(u8::is_ascii_hexdigit).count();
        let num_more = match c {
            'p' | 'P' | 'x' | 'u' | 'U' if after.starts_with('{') => {
                after.find('}').map_or(after.len(), |end| end + 1)
            }
            'p' | 'P' => after.chars().next().map_or(0, char::len_utf8),
            'x' => num_digits(2),
            'u' => num_digits(4),
            'U' => num_digits(8),
            _ => 0,
        };
        let written = self.take(begin + num_more);
        let text = match c {
            's' if self.dialect == Dialect::Ecma => ECMA_SPACE,
            'S' if self.dialect == Dialect::Ecma => ECMA_NO_SPACE,
            _ => written,
        };
        Ok(Atom { text, is_set: is_set(c) })
    }

    /// Appends the class that begins here. By ECMA-262 each character in it stands for itself; the
    /// parser has classes within classes, and `&&`, `--` and `~~` between them.
    fn class(&mut self, out: &mut String) -> Result<(), String> {
        let is_ecma = self.dialect == Dialect::Ecma;
        let mut depth = 0usize;
        loop {
            match self.next() {
                Some('[') if depth == 0 => {
                    depth = 1;
                    self.begin_class(out)?;
                }
                Some('[') if is_ecma && self.posix_len().is_some() => {
                    return Err("ECMA-262 has no classes such as [:alpha:]".to_string());
                }
                Some('[') if !is_ecma => match self.posix_len() {
                    Some(len) => out.push_str(self.take(len)),
                    None => {
                        depth += 1;
                        self.begin_class(out)?;
                    }
                },
                Some(']') => {
                    out.push_str(self.take(1));
                    depth -= 1;
                }
                Some(_) => self.element(out)?,
                None => return Ok(()), // the parser says that it has no end
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// The length of a class such as `[:alpha:]` that stands here.
    fn posix_len(&self) -> Option<usize> {
        let name = self.rest.strip_prefix("[:")?;
        let len = name.bytes().take_while(u8::is_ascii_alphabetic).count();
        name[len..].starts_with(":]").then_some(len + 4)
    }

    /// The opening of a class, with a bracket that is its first character.
    fn begin_class(&mut self, out: &mut String) -> Result<(), String> {
        let num_signs = if self.rest.starts_with("[^") { 2 } else { 1 };
        out.push_str(self.take(num_signs));
        if self.rest.starts_with(']') {
            if self.dialect == Dialect::Ecma {
                return Err("[] and [^] end here by ECMA-262, and elsewhere at the next bracket; \
                            write \\] for the character"
                    .to_string());
            }
            out.push_str(self.take(1));
        }
        Ok(())
    }

    /// A character, a set or a range. A hyphen beside a set such as `\d` begins no range:
    /// llguidance writes a class in the place of the set.
    fn element(&mut self, out: &mut String) -> Result<(), String> {
        let first = self.atom()?;
        self.push(&first, out);
        let after = self
            .rest
            .strip_prefix('-')
            .filter(|after| !matches!(after.chars().next(), None | Some(']')));
        let Some(after) = after else { return Ok(()) };
        if self.dialect == Dialect::Ecma {
            self.take(1);
            let last = self.atom()?;
            out.push_str(if first.is_set || last.is_set { "\\-" } else { "-" });
            self.push(&last, out);
            return Ok(());
        }
        let is_operator = first.text == "-" || after.starts_with('-');
        if !is_operator && (first.is_set || begins_set(after)) {
            self.take(1);
            out.push_str("\\-");
        }
        Ok(())
    }

    /// The next element of a class.
    fn atom(&mut self) -> Result<Atom<'a>, String> {
        match self.next() {
            Some('\\') => self.escape(),
            c => Ok(Atom { text: self.take(c.map_or(0, char::len_utf8)), is_set: false }),
        }
    }

    fn push(&self, atom: &Atom, out: &mut String) {
        let is_sign = matches!(atom.text, "[" | "]" | "&" | "~" | "-" | "^");
        if is_sign && self.dialect == Dialect::Ecma {
            out.push('\\');
        }
        out.push_str(atom.text);
    }
}

/// Whether a text begins with an escape that stands for a set.
fn begins_set(text: &str) -> bool {
    let letter = text.strip_prefix('\\').and_then(|rest| rest.chars().next());
    letter.is_some_and(is_set)
}

fn is_set(letter: char) -> bool {
    matches!(letter, 'd' | 'D' | 'w' | 'W' | 's' | 'S' | 'p' | 'P')
}

/// Whether a text begins with a group that turns a flag on: `(?x)`, `(?ix-s:`.
fn sets(text: &str, flag: char) -> bool {
    let Some(rest) = text.strip_prefix("(?") else { return false };
    let len = rest.bytes().take_while(|b| b.is_ascii_alphabetic() || *b == b'-').count();
    let (flags, after) = rest.split_at(len);
    after.starts_with([':', ')']) && flags.split('-').next().unwrap_or("").contains(flag)
}
