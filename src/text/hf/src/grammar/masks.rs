//! Masks of one grammar. A token that stays within a lexeme is allowed, or not, by the state of the
//! lexer alone: this part of a mask is computed once for each state and serves all answers. The
//! tokens that end a lexeme are asked of the parser for every mask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::{Regex, StateID};
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokEnv, TokTrie, TrieNode};

use super::memory::Memory;
use crate::Failure;

const NO_TOKEN: u32 = u32::MAX;
/// A token has fewer bytes: a node's depth is a byte.
const MAX_DEPTH: usize = 256;
/// In LexerPart::rest: the nodes below this one too.
const WITH_SUBTREE: u32 = 1 << 31;
/// Work of asking the lexer whether a state takes a whole slice, as in SlicedBiasComputer.
const SLICE_BUDGET: u64 = 1_000;

/// A byte of a token. Nodes stand in preorder.
#[derive(Clone, Copy)]
struct Node {
    /// The first node that is not below this one.
    next: u32,
    /// The token that ends here, or NO_TOKEN.
    token: u32,
    byte: u8,
    /// Bytes before this one.
    depth: u8,
    /// Bit s: all tokens that pass here are in slice s.
    slices: u8,
}

/// The tokens of a vocabulary by their bytes. Immutable; any thread.
pub struct TokenTree {
    env: TokEnv,
    nodes: Vec<Node>,
    /// Tokens of each slice: texts that many states of a lexer take whole. Wider ones come later.
    slices: Vec<SimpleVob>,
}

/// The part of a mask that a state of the lexer decides.
struct LexerPart {
    /// Tokens that stay within a lexeme.
    allowed: SimpleVob,
    /// Nodes where a lexeme ends, WITH_SUBTREE, and those on the way to them, in preorder.
    rest: Vec<u32>,
}

/// The masks of all parsers that share one lexer. Any thread.
pub struct LexerMasks {
    tree: Arc<TokenTree>,
    memory: Arc<Memory>,
    max_bytes: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    parts: HashMap<StateID, Arc<LexerPart>>,
    num_bytes: usize,
}

/// Builds a TokenTree.
struct TreeBuilder<'a> {
    trie: &'a TokTrie,
    regexes: Vec<Regex>,
    nodes: Vec<Node>,
    slices: Vec<SimpleVob>,
}

impl TreeBuilder<'_> {
    /// Appends the nodes below `parent`, where the slices' expressions are in `states`. Returns the
    /// slices that have all tokens below.
    fn add_below(&mut self, parent: &TrieNode, depth: usize, states: &[StateID]) -> u8 {
        let trie = self.trie;
        let mut slices_of_all = u8::MAX;
        for node in trie.node_children(parent) {
            let byte = node.byte();
            let states: Vec<StateID> = self
                .regexes
                .iter_mut()
                .zip(states)
                .map(|(regex, state)| regex.transition(*state, byte))
                .collect();
            let mut slices = u8::MAX;
            if let Some(token) = node.token_id() {
                for (s, regex) in self.regexes.iter_mut().enumerate() {
                    if regex.is_accepting(states[s]) {
                        self.slices[s].allow_token(token);
                    } else {
                        slices &= !(1 << s);
                    }
                }
            }
            let at = self.nodes.len();
            let token = node.token_id().unwrap_or(NO_TOKEN);
            self.nodes.push(Node { next: 0, token, byte, depth: depth as u8, slices: 0 });
            slices &= self.add_below(node, depth + 1, &states);
            self.nodes[at].next = self.nodes.len() as u32;
            self.nodes[at].slices = slices;
            slices_of_all &= slices;
        }
        slices_of_all
    }
}

impl TokenTree {
    /// The expressions of slices; a grammar's lexer must have been made with the same ones.
    pub fn slices() -> Vec<String> {
        SlicedBiasComputer::json_slices()
    }

    /// No token of `env` has MAX_DEPTH bytes.
    pub fn new(env: &TokEnv) -> Result<TokenTree, Failure> {
        let trie = env.tok_trie();
        let regexes = Self::slices()
            .iter()
            .map(|text| Regex::new(text))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| Failure::invalid(format!("vocabulary: {e}")))?;
        let slices = vec![trie.alloc_token_set(); regexes.len()];
        let mut builder = TreeBuilder { trie, regexes, nodes: Vec::new(), slices };
        let starts: Vec<_> = builder.regexes.iter_mut().map(Regex::initial_state).collect();
        builder.add_below(trie.root(), 0, &starts);
        Ok(TokenTree { env: Arc::clone(env), nodes: builder.nodes, slices: builder.slices })
    }

    /// The widest slice that the parser's lexer takes whole.
    fn slice_within(&self, parser: &mut ParserRecognizer<'_>) -> Option<usize> {
        let state = parser.lexer_state();
        let lexer = parser.lexer_mut();
        if !lexer.subsume_possible(state) {
            return None;
        }
        let takes = |s: &usize| lexer.check_subsume(state, *s, SLICE_BUDGET, None).unwrap_or(false);
        (0..self.slices.len()).rev().find(takes)
    }

    /// Asks the lexer alone.
    fn part_of(&self, parser: &mut ParserRecognizer<'_>) -> LexerPart {
        let slice = self.slice_within(parser);
        let mut allowed = match slice {
            Some(s) => self.slices[s].clone(),
            None => self.env.tok_trie().alloc_token_set(),
        };
        let done = slice.map_or(0, |s| 1u8 << s);
        let mut rest = Vec::new();
        // By depth: the lexer before the node's byte, and the nodes above it. The first num_written
        // of these stand in `rest`.
        let mut states = [StateID::DEAD; MAX_DEPTH];
        let mut above = [0u32; MAX_DEPTH];
        let mut num_written = 0;
        states[0] = parser.lexer_state();
        let lexer = parser.lexer_mut();
        let mut at = 0;
        while let Some(node) = self.nodes.get(at) {
            if node.slices & done != 0 {
                at = node.next as usize;
                continue;
            }
            let depth = usize::from(node.depth);
            num_written = num_written.min(depth);
            let before = states[depth];
            let after = lexer.transition_start_state(before, Some(node.byte), &None);
            if !after.is_dead() && !after.has_lowest_match() {
                if node.token != NO_TOKEN {
                    allowed.allow_token(node.token);
                }
                (states[depth + 1], above[depth]) = (after, at as u32);
                at += 1;
                continue;
            }
            if !lexer.advance(before, node.byte, false, &None).is_error() {
                rest.extend_from_slice(&above[num_written..depth]);
                num_written = depth;
                rest.push(at as u32 | WITH_SUBTREE);
            }
            at = node.next as usize;
        }
        LexerPart { allowed, rest }
    }

    /// Adds the tokens of `rest` that the parser allows.
    fn add_rest(&self, rest: &[u32], parser: &mut ParserRecognizer<'_>, set: &mut SimpleVob) {
        parser.trie_started("rest");
        let mut num_pushed = 0;
        for entry in rest {
            let first = (entry & !WITH_SUBTREE) as usize;
            let end = match entry & WITH_SUBTREE {
                0 => first + 1,
                _ => self.nodes[first].next as usize,
            };
            let mut at = first;
            while at < end {
                let node = &self.nodes[at];
                let depth = usize::from(node.depth);
                parser.pop_bytes(num_pushed - depth);
                num_pushed = depth;
                if parser.try_push_byte(node.byte) {
                    num_pushed += 1;
                    if node.token != NO_TOKEN {
                        set.allow_token(node.token);
                    }
                    at += 1;
                } else if entry & WITH_SUBTREE != 0 {
                    at = node.next as usize;
                } else {
                    // The lexer has met a limit since then. The whole mask is an error.
                    return parser.trie_finished();
                }
            }
        }
        parser.trie_finished();
    }
}

impl LexerMasks {
    /// `max_bytes` and `memory` bound what is kept. The states after that are asked for each mask.
    pub fn new(tree: Arc<TokenTree>, memory: Arc<Memory>, max_bytes: usize) -> LexerMasks {
        LexerMasks { tree, memory, max_bytes, kept: Mutex::default() }
    }

    fn part_of(&self, parser: &mut ParserRecognizer<'_>) -> Arc<LexerPart> {
        let state = parser.lexer_state();
        // A part that was put down is whole, whatever became of the thread that did it.
        if let Some(part) = self.lock().parts.get(&state) {
            return Arc::clone(part);
        }
        let part = Arc::new(self.tree.part_of(parser));
        let num_bytes = size_of::<LexerPart>()
            + size_of_val(part.allowed.as_slice())
            + size_of_val(part.rest.as_slice());
        let mut kept = self.lock();
        if kept.num_bytes + num_bytes <= self.max_bytes && self.memory.take_mask(num_bytes) {
            kept.num_bytes += num_bytes;
            kept.parts.insert(state, Arc::clone(&part));
        }
        part
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn num_bytes(&self) -> usize {
        self.lock().num_bytes
    }
}

impl Drop for LexerMasks {
    fn drop(&mut self) {
        self.memory.give_masks_back(self.lock().num_bytes);
    }
}

impl BiasComputer for LexerMasks {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        if !start.is_empty() {
            // Bytes that the parser has and no token has brought: only where tokens are forced.
            let mut set = self.trie().alloc_token_set();
            self.trie().add_bias(parser, &mut set, start);
            return set;
        }
        let part = self.part_of(parser);
        let mut set = part.allowed.clone();
        self.tree.add_rest(&part.rest, parser, &mut set);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.tree.env.tok_trie()
    }
}
