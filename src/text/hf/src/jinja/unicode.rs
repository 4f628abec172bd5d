//! Python's classes of characters.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

use super::unicode_tables as tables;

/// Ranges of code points [first, last], ascending.
type Ranges = Vec<(u32, u32)>;

// Python 3.11 has the characters of Unicode 14.
static NOT_PRINTABLE: LazyLock<Ranges> = LazyLock::new(|| class(r"[[\pC\pZ\P{age=14.0}]--\x20]"));
static ALPHA: LazyLock<Ranges> = LazyLock::new(|| class(r"[\pL&&\p{age=14.0}]"));
static DECIMAL: LazyLock<Ranges> = LazyLock::new(|| class(r"[\p{Nd}&&\p{age=14.0}]"));

fn class(text: &str) -> Ranges {
    match regex_syntax::parse(text).map(|parsed| parsed.into_kind()) {
        Ok(HirKind::Class(Class::Unicode(set))) => {
            set.ranges().iter().map(|r| (u32::from(r.start()), u32::from(r.end()))).collect()
        }
        other => unreachable!("{text}: {other:?}"),
    }
}

/// Makes the classes. Called before the first rendering: a rendering that goes past its memory
/// stops where it is, and would stop all others in the middle of a class.
pub fn prepare() {
    for made in [&NOT_PRINTABLE, &ALPHA, &DECIMAL] {
        LazyLock::force(made);
    }
}

fn in_ranges(ranges: &[(u32, u32)], c: char) -> bool {
    let code = u32::from(c);
    let at = ranges.partition_point(|(_, last)| *last < code);
    ranges.get(at).is_some_and(|(first, _)| *first <= code)
}

fn mapped(map: &'static [(u32, &'static str)], c: char) -> Option<&'static str> {
    let code = u32::from(c);
    map.binary_search_by_key(&code, |(from, _)| *from).ok().map(|at| map[at].1)
}

/// str.isspace of one character; also what strip() and split() take for a blank.
pub fn is_space(c: char) -> bool {
    matches!(
        c,
        '\t'..='\r'
            | '\x1c'..='\x20'
            | '\u{85}'
            | '\u{a0}'
            | '\u{1680}'
            | '\u{2000}'..='\u{200a}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{202f}'
            | '\u{205f}'
            | '\u{3000}'
    )
}

/// Where str.splitlines cuts; "\r\n" is one end.
pub fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    !in_ranges(&NOT_PRINTABLE, c)
}

pub fn is_alpha(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    in_ranges(&ALPHA, c)
}

pub fn is_decimal(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    in_ranges(&DECIMAL, c)
}

/// 0..9 of any script; decimal digits come in runs of ten from their zero on.
pub fn decimal_value(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    let code = u32::from(c);
    let at = DECIMAL.partition_point(|(_, last)| *last < code);
    let (first, _) = *DECIMAL.get(at).filter(|(first, _)| *first <= code)?;
    Some((code - first) % 10)
}

pub fn is_digit(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    in_ranges(&tables::DIGIT, c)
}

pub fn is_numeric(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    in_ranges(&tables::NUMERIC, c)
}

/// \w of Python's re.
pub fn is_word(c: char) -> bool {
    c == '_' || is_alpha(c) || is_numeric(c)
}

/// Titlecase letters (ǅ) are neither upper nor lower.
pub fn is_title(c: char) -> bool {
    matches!(
        u32::from(c),
        0x1c5 | 0x1c8 | 0x1cb | 0x1f2 | 0x1f88..=0x1f8f | 0x1f98..=0x1f9f | 0x1fa8..=0x1faf
            | 0x1fbc | 0x1fcc | 0x1ffc
    )
}

/// Has case: the letters between which title() begins no word.
pub fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || is_title(c)
}

/// The title form of one character.
pub fn push_title(c: char, out: &mut String) {
    match mapped(&tables::TITLE, c) {
        Some(text) => out.push_str(text),
        None => out.extend(c.to_uppercase()),
    }
}

pub fn casefold(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match mapped(&tables::CASEFOLD, c) {
            Some(folded) => out.push_str(folded),
            None => out.extend(c.to_lowercase()),
        }
    }
    out
}

#[cfg(test)]
mod class_tests {
    use super::*;

    /// The numbers are CPython 3.11's: ranges, characters, and the sum of all first and three times
    /// all last ones.
    #[test]
    fn classes_are_those_of_python() {
        for (name, made, python) in [
            ("isprintable", &NOT_PRINTABLE, (701, 969_596, 160_370_773)),
            ("isalpha", &ALPHA, (648, 131_756, 120_131_044)),
            ("isdecimal", &DECIMAL, (62, 660, 10_390_322)),
        ] {
            let num_characters: u32 = made.iter().map(|(first, last)| last - first + 1).sum();
            let places: u32 = made.iter().map(|(first, last)| first + 3 * last).sum();
            assert_eq!((made.len(), num_characters, places), python, "{name}");
        }
    }
}
