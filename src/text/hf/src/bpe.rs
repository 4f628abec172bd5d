//! Byte-level BPE over the `tokenizers` model: split by the patterns, map bytes to letters, merge.
//!
//! The crate's own pipeline (`PreTokenizedString`) keeps an alignment entry per byte, which nobody
//! here reads; splitting the text directly gives the same pieces.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::ops::Range;

use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::utils::SysRegex;
use tokenizers::Model;
use unicode_normalization_alignments::UnicodeNormalization;

use crate::Failure;

/// The letter that stands for each byte in a byte-level vocabulary (GPT-2's bytes_to_unicode):
/// printable Latin-1 bytes stand for themselves, the others for U+0100 upwards in byte order.
pub fn byte_letters() -> [char; 256] {
    let mut letters = ['\0'; 256];
    let mut next = 0x100u32;
    for byte in 0..=255u8 {
        let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        letters[byte as usize] = if printable {
            byte as char
        } else {
            next += 1;
            char::from_u32(next - 1).expect("U+0100..U+0143 are characters")
        };
    }
    letters
}

/// The parts of a vocabulary; see baton_text_bpe_spec.
pub struct BpeSpec<'a> {
    pub tokens: Vec<(&'a str, u32)>,
    pub merges: Vec<(u32, u32)>,
    pub patterns: Vec<&'a str>,
    pub ignore_merges: bool,
}

/// An immutable encoder; its only shared state is the model's cache of pieces, which is locked.
pub struct Bpe {
    patterns: Vec<SysRegex>,
    letters: [char; 256],
    model: BPE,
}

/// Unicode's form C, as the crate's normalizer NFC makes it.
pub fn compose(text: &str) -> String {
    text.nfc().map(|(letter, _)| letter).collect()
}

impl Bpe {
    pub fn new(spec: &BpeSpec) -> Result<Bpe, Failure> {
        let patterns = spec
            .patterns
            .iter()
            .map(|pattern| {
                SysRegex::new(pattern)
                    .map_err(|e| Failure::invalid(format!("split rule {pattern:?}: {e}")))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (vocab, merges) = vocab_and_merges(spec)?;
        let model = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(spec.ignore_merges)
            .build()
            .map_err(|e| Failure::invalid(format!("vocabulary: {e}")))?;
        Ok(Bpe { patterns, letters: byte_letters(), model })
    }

    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        let mut pieces = vec![Range { start: 0, end: text.len() }];
        for pattern in &self.patterns {
            pieces = split(pattern, text, &pieces);
        }
        let mut ids = Vec::with_capacity(text.len() / 3 + 4);
        let mut letters = String::new();
        for piece in pieces {
            letters.clear();
            letters.extend(text.as_bytes()[piece].iter().map(|byte| self.letters[*byte as usize]));
            let tokens = self
                .model
                .tokenize(&letters)
                .map_err(|e| Failure::invalid(format!("cannot encode: {e}")))?;
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(ids)
    }
}

/// Cuts each piece at the matches of `pattern`, which sees one piece at a time; what lies between
/// two matches is a piece too.
fn split(pattern: &SysRegex, text: &str, pieces: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut out = Vec::with_capacity(pieces.len() + text.len() / 4);
    for piece in pieces {
        let mut done = piece.start;
        for (from, to) in pattern.find_iter(&text[piece.clone()]) {
            let (from, to) = (piece.start + from, piece.start + to);
            if from == to {
                continue;
            }
            if done < from {
                out.push(done..from);
            }
            out.push(from..to);
            done = to;
        }
        if done < piece.end {
            out.push(done..piece.end);
        }
    }
    out
}

fn vocab_and_merges(spec: &BpeSpec) -> Result<(Vocab, Merges), Failure> {
    let mut vocab = Vocab::with_capacity(spec.tokens.len());
    let mut text_of = HashMap::with_capacity(spec.tokens.len());
    for (text, id) in &spec.tokens {
        if text.is_empty() {
            return Err(Failure::invalid(format!("token {id} is empty")));
        }
        if let Some(other) = vocab.insert(text.to_string(), *id) {
            return Err(Failure::invalid(format!("tokens {other} and {id} are both {text:?}")));
        }
        match text_of.entry(*id) {
            Entry::Vacant(slot) => slot.insert(*text),
            Entry::Occupied(slot) => {
                let first = slot.get();
                return Err(Failure::invalid(format!("id {id} is both {first:?} and {text:?}")));
            }
        };
    }
    let mut merges = Merges::with_capacity(spec.merges.len());
    for (rank, (left, right)) in spec.merges.iter().enumerate() {
        let (Some(left), Some(right)) = (text_of.get(left), text_of.get(right)) else {
            return Err(Failure::invalid(format!(
                "merge {rank} joins {left} and {right}, not both in the vocabulary"
            )));
        };
        merges.push((left.to_string(), right.to_string()));
    }
    Ok((vocab, merges))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPT2: &str =
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

    /// All bytes as letters (ids 0..256) plus "ab", "Ġa", "Ġab".
    fn letters_and(ignore_merges: bool, extra: &[(&str, u32)], merges: &[(u32, u32)]) -> Bpe {
        let letters: Vec<String> = byte_letters().iter().map(|c| c.to_string()).collect();
        let mut tokens: Vec<(&str, u32)> =
            letters.iter().enumerate().map(|(i, text)| (text.as_str(), i as u32)).collect();
        tokens.extend(extra);
        let spec = BpeSpec {
            tokens,
            merges: merges.to_vec(),
            patterns: vec![GPT2],
            ignore_merges,
        };
        Bpe::new(&spec).unwrap()
    }

    #[test]
    fn the_alphabet_is_the_published_one() {
        let letters = byte_letters();
        assert_eq!(letters[b'a' as usize], 'a');
        assert_eq!(letters[b' ' as usize], 'Ġ');
        assert_eq!(letters[b'\n' as usize], 'Ċ');
        assert_eq!(letters[0x7f], 'ġ');
        assert_eq!(letters[0xad], 'Ń');
        assert_eq!(letters[0xff], 'ÿ');
        let distinct: std::collections::HashSet<char> = letters.into_iter().collect();
        assert_eq!(distinct.len(), 256);
    }

    #[test]
    fn merges_apply_by_rank_inside_pieces_only() {
        let (a, b, space) = (b'a' as u32, b'b' as u32, b' ' as u32);
        let bpe = letters_and(
            false,
            &[("ab", 256), ("Ġa", 257), ("Ġab", 258)],
            &[(a, b), (space, a), (257, b)],
        );
        assert_eq!(bpe.encode("ab").unwrap(), [256]);
        assert_eq!(bpe.encode(" ab").unwrap(), [space, 256], "a+b ranks before space+a");
        assert_eq!(bpe.encode(" a").unwrap(), [257]);
        assert_eq!(bpe.encode("a b").unwrap(), [a, space, b]);
        assert!(bpe.encode("").unwrap().is_empty());
        assert_eq!(bpe.encode("é").unwrap(), [0xc3, 0xa9]);
    }

    #[test]
    fn ignore_merges_takes_a_whole_piece() {
        let (a, b, space) = (b'a' as u32, b'b' as u32, b' ' as u32);
        let merges = [(a, b), (space, a), (257, b)];
        let extra = [("ab", 256), ("Ġa", 257), ("Ġab", 258)];
        assert_eq!(letters_and(true, &extra, &merges).encode(" ab").unwrap(), [258]);
    }

    #[test]
    fn form_c_composes() {
        assert_eq!(compose("e\u{301}\u{301}"), "\u{e9}\u{301}");
        assert_eq!(compose(">\u{338}"), "\u{226f}");
        assert_eq!(compose("plain"), "plain");
    }

    #[test]
    fn hostile_vocabularies_are_refused_with_the_values() {
        let refuse = |tokens: Vec<(&str, u32)>, merges: Vec<(u32, u32)>, patterns: Vec<&str>| {
            let spec = BpeSpec { tokens, merges, patterns, ignore_merges: false };
            match Bpe::new(&spec) {
                Ok(_) => panic!("accepted"),
                Err(failure) => failure.message,
            }
        };
        assert!(refuse(vec![("a", 1), ("a", 2)], vec![], vec![]).contains("1 and 2"));
        assert!(refuse(vec![("a", 1), ("b", 1)], vec![], vec![]).contains("id 1"));
        assert!(refuse(vec![("", 7)], vec![], vec![]).contains("token 7"));
        assert!(refuse(vec![("a", 1)], vec![(1, 9)], vec![]).contains("merge 0"));
        assert!(refuse(vec![("a", 1), ("b", 2)], vec![(1, 2)], vec![]).contains("ab"));
        assert!(refuse(vec![], vec![], vec!["(unclosed"]).contains("(unclosed"));
    }

    #[test]
    fn long_runs_are_not_quadratic() {
        let bpe = letters_and(false, &[], &[]);
        for unit in ["a", " ", "\n", " \n", "中", "!", "1"] {
            let text = unit.repeat((1 << 20) / unit.len());
            let start = std::time::Instant::now();
            assert_eq!(bpe.encode(&text).unwrap().len(), text.len(), "{unit:?}");
            // A quadratic split would take minutes.
            assert!(start.elapsed().as_secs() < 30, "{unit:?}: {:?}", start.elapsed());
        }
    }
}
