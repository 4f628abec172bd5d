//! textwrap.wrap with expand_tabs and replace_whitespace off, as the filter wordwrap calls it.

use super::error::{charge, charge_work, Res};
use super::unicode;

/// Cutting a word costs about ten times what copying it does.
const CHARS_PER_INSTRUCTION: usize = 256;

/// textwrap knows the ASCII blanks alone.
fn is_blank(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\x0b' | '\x0c' | '\r' | ' ')
}

fn len(text: &str) -> usize {
    text.chars().count()
}

/// Cuts a text into runs of blanks and words; a word is cut behind its hyphens between letters.
fn chunks(text: &str, break_on_hyphens: bool) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let blank = is_blank(first);
        let end = rest.find(|c| is_blank(c) != blank).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        if blank || !break_on_hyphens {
            out.push(part.to_string());
        } else {
            split_word(part, &mut out);
        }
        rest = after;
    }
    out
}

/// A hyphen ends a part when two letters stand before it and two word characters or a letter and
/// another hyphen follow; a dash of two or more is a part of its own.
fn split_word(word: &str, out: &mut Vec<String>) {
    let chars: Vec<char> = word.chars().collect();
    let is_letter = |c: char| unicode::is_word(c) && !unicode::is_numeric(c) && c != '_';
    let is_mark =
        |c: char| unicode::is_word(c) || matches!(c, '!' | '"' | '\'' | '&' | '.' | ',' | '?');
    let mut begin = 0;
    let mut at = 0;
    while at < chars.len() {
        let dashes = chars[at..].iter().take_while(|c| **c == '-').count();
        if dashes == 0 {
            at += 1;
            continue;
        }
        let after = at + dashes;
        let follows_word = chars.get(after).is_some_and(|c| unicode::is_word(*c));
        if dashes >= 2 && at > begin && is_mark(chars[at - 1]) && follows_word {
            out.push(chars[begin..at].iter().collect());
            out.push(chars[at..after].iter().collect());
            begin = after;
        } else if dashes == 1 && at >= begin + 2 {
            let before = is_letter(chars[at - 1]) && is_letter(chars[at - 2]);
            let next = chars.get(after).copied();
            let second = chars.get(after + 1).copied();
            let fits =
                next.is_some_and(is_letter) && second.is_some_and(|c| is_letter(c) || c == '-');
            if before && fits {
                out.push(chars[begin..after].iter().collect());
                begin = after;
            }
        }
        at = after;
    }
    if begin < chars.len() {
        out.push(chars[begin..].iter().collect());
    }
}

pub fn wrap(
    text: &str,
    width: usize,
    break_long: bool,
    break_on_hyphens: bool,
) -> Res<Vec<String>> {
    let mut chunks = chunks(text, break_on_hyphens);
    chunks.reverse();
    let mut lines: Vec<String> = Vec::new();
    while !chunks.is_empty() {
        let mut line: Vec<String> = Vec::new();
        let mut taken = 0;
        let is_blank_text = |chunk: &String| chunk.trim_matches(unicode::is_space).is_empty();
        if !lines.is_empty() && chunks.last().is_some_and(is_blank_text) {
            chunks.pop();
        }
        while let Some(chunk) = chunks.pop() {
            // A long word comes back once a line, and each time all of it is cut anew.
            charge_work(chunk.len())?;
            charge((chunk.len() / CHARS_PER_INSTRUCTION) as u64)?;
            let size = len(&chunk);
            if taken + size <= width {
                taken += size;
                line.push(chunk);
                continue;
            }
            chunks.push(chunk);
            break;
        }
        if let Some(chunk) = chunks.pop_if(|chunk| len(chunk) > width) {
            long_word(
                chunk,
                width - taken.min(width),
                break_long,
                break_on_hyphens,
                &mut line,
                &mut chunks,
            );
        }
        if line.last().is_some_and(is_blank_text) {
            line.pop();
        }
        if !line.is_empty() {
            lines.push(line.concat());
        }
    }
    Ok(lines)
}

/// A word that fits no line: what has room ends this line, the rest goes back.
fn long_word(
    word: String,
    room: usize,
    break_long: bool,
    on_hyphens: bool,
    line: &mut Vec<String>,
    chunks: &mut Vec<String>,
) {
    if !break_long {
        if line.is_empty() {
            line.push(word);
        } else {
            chunks.push(word);
        }
        return;
    }
    let chars: Vec<char> = word.chars().collect();
    let mut end = room.max(1);
    if on_hyphens && chars.len() > end {
        let hyphen = chars[..end].iter().rposition(|c| *c == '-');
        if let Some(hyphen) = hyphen.filter(|h| *h > 0 && chars[..*h].iter().any(|c| *c != '-')) {
            end = hyphen + 1;
        }
    }
    line.push(chars[..end.min(chars.len())].iter().collect());
    let rest: String = chars[end.min(chars.len())..].iter().collect();
    if !rest.is_empty() {
        chunks.push(rest);
    }
}
