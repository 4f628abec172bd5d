//! Python's classes of characters.

use super::unicode_tables as tables;

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
    !in_ranges(&tables::NOT_PRINTABLE, c)
}

pub fn is_alpha(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_alphabetic();
    }
    in_ranges(&tables::ALPHA, c)
}

pub fn is_decimal(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_digit();
    }
    in_ranges(&tables::DECIMAL, c)
}

/// 0..9 of any script; decimal digits come in runs of ten from their zero on.
pub fn decimal_value(c: char) -> Option<u32> {
    if c.is_ascii() {
        return c.to_digit(10);
    }
    let code = u32::from(c);
    let at = tables::DECIMAL.partition_point(|(_, last)| *last < code);
    let (first, _) = *tables::DECIMAL.get(at).filter(|(first, _)| *first <= code)?;
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
