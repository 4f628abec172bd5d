//! The tokens of one model as a trie of bytes, built once and shared by all its grammars.

use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::ParserFactory;

use super::masks::TokenTree;
use super::memory::{Memory, MAX_MASK_BYTES};
use crate::Failure;

/// The byte that llguidance puts before the name of a special token. No UTF-8 text has it, so a
/// token with it can never be part of an answer.
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// A token longer than this is left out: the trie counts the parents of a node in a byte.
const MAX_TOKEN_BYTES: usize = 250;

/// Work that one grammar may cause. A step is one mask or one token that is taken.
pub fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,      // 500 optional properties need 2,007
        initial_lexer_fuel: 1_000_000, // about 20 ms
        step_lexer_fuel: 200_000,      // about 14 ms
        step_max_items: 50_000,        // about 3 ms
        max_lexer_states: 50_000,      // 1 to 2 KiB each
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Immutable; any thread.
pub struct Vocabulary {
    pub factory: ParserFactory,
    pub tree: Arc<TokenTree>,
    pub memory: Arc<Memory>,
    /// Bit i: token i has text that a grammar can spell, or it ends a generation.
    pub usable: Vec<u32>,
    pub num_tokens: usize,
}

impl Vocabulary {
    /// `tokens[i]` is the text of token i, empty for a token that no answer may hold (control,
    /// unknown). `ends` are the tokens that end a generation.
    pub fn new(tokens: &[&[u8]], ends: &[u32]) -> Result<Vocabulary, Failure> {
        if ends.is_empty() {
            return Err(Failure::invalid("no token ends a generation"));
        }
        if let Some(end) = ends.iter().find(|end| **end as usize >= tokens.len()) {
            return Err(Failure::invalid(format!(
                "token {end} ends a generation, but the vocabulary has {} tokens",
                tokens.len()
            )));
        }
        let mut usable = vec![0u32; tokens.len().div_ceil(32)];
        let mut set = |id: usize| usable[id / 32] |= 1 << (id % 32);
        let mut words = vec![Vec::new(); tokens.len()];
        for (id, bytes) in tokens.iter().enumerate() {
            let ends_generation = ends.contains(&(id as u32));
            let spelled = !bytes.is_empty()
                && bytes.len() <= MAX_TOKEN_BYTES
                && !bytes.contains(&MARKER)
                && !ends_generation;
            if spelled {
                words[id] = bytes.to_vec();
            }
            if spelled || ends_generation {
                set(id);
            }
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let tree = Arc::new(TokenTree::new(&env)?);
        let slices = TokenTree::slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| Failure::invalid(format!("vocabulary: {e}")))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        let memory = Arc::new(Memory::new(MAX_MASK_BYTES));
        Ok(Vocabulary { factory, tree, memory, usable, num_tokens: tokens.len() })
    }
}
