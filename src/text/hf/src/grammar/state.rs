//! Where one answer stands in its grammar.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::StopReason;
use llguidance::earley::Parser;
use llguidance::{Matcher, TokenParser};

use super::masks::LexerMasks;
use super::memory::Memory;
use super::vocabulary::Vocabulary;
use crate::{Code, Failure};

/// Bytes of masks that the answers of one lexer share: those of 600 states of the lexer at 50,000
/// tokens, of 120 at 260,000.
const MAX_LEXER_MASK_BYTES: usize = 4 << 20;

/// A compiled grammar. Its states share one cache of the lexer, which is behind a lock: one step
/// runs at a time.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// Never advanced: what a state is built from when the shared cache has met a limit.
    pristine: TokenParser,
    /// The state at the start with the cache that all states share.
    shared: Mutex<Start>,
    /// Keywords of the schema that are not enforced, each as its place.
    pub ignored: Vec<String>,
}

/// The state of one answer: a pure function of the grammar and of `tokens`. One thread at a time.
pub struct State {
    grammar: Arc<Grammar>,
    matcher: Matcher,
    lexer: Arc<Lexer>,
    tokens: Vec<u32>,
}

/// A state at the start, and the lexer that all of its copies share.
#[derive(Clone)]
struct Start {
    matcher: Matcher,
    lexer: Arc<Lexer>,
}

/// Counts the states that a lexer has made.
struct Lexer {
    /// Never advanced: it looks at the lexer.
    parser: Parser,
    memory: Arc<Memory>,
    num_bytes: AtomicUsize,
}

impl Lexer {
    /// Counts anew, after a step that was good. A lexer in which another thread has just panicked
    /// cannot be looked at, and is about to be left.
    fn count(&self) {
        let look = AssertUnwindSafe(|| self.parser.lexer_stats().num_bytes);
        let Ok(now) = catch_unwind(look) else { return };
        self.memory.change_lexer(self.num_bytes.swap(now, Relaxed), now);
    }
}

impl Drop for Lexer {
    fn drop(&mut self) {
        self.memory.change_lexer(*self.num_bytes.get_mut(), 0);
    }
}

fn lock(shared: &Mutex<Start>) -> std::sync::MutexGuard<'_, Start> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Grammar {
    pub fn new(
        vocabulary: Arc<Vocabulary>,
        pristine: TokenParser,
        ignored: Vec<String>,
    ) -> Grammar {
        let shared = Mutex::new(at_start(&vocabulary, &pristine));
        Grammar { vocabulary, pristine, shared, ignored }
    }

    /// The state at the start with a lexer of its own. What one lexer's masks keep says nothing of
    /// another's states.
    fn fresh(&self) -> Start {
        at_start(&self.vocabulary, &self.pristine)
    }

    #[cfg(test)]
    pub fn usable(&self) -> &[u32] {
        &self.vocabulary.usable
    }

    #[cfg(test)]
    pub fn parser(&self) -> TokenParser {
        self.pristine.deep_clone()
    }
}

fn at_start(vocabulary: &Vocabulary, pristine: &TokenParser) -> Start {
    let mut parser = pristine.deep_clone();
    let memory = &vocabulary.memory;
    let tree = Arc::clone(&vocabulary.tree);
    let masks = LexerMasks::new(tree, Arc::clone(memory), MAX_LEXER_MASK_BYTES);
    parser.bias_computer = Arc::new(masks);
    let lexer = Arc::new(Lexer {
        parser: parser.parser.clone(),
        memory: Arc::clone(memory),
        num_bytes: AtomicUsize::new(0),
    });
    lexer.count();
    Start { matcher: Matcher::new(Ok(parser)), lexer }
}

impl State {
    pub fn new(grammar: &Arc<Grammar>) -> State {
        let Start { matcher, lexer } = lock(&grammar.shared).clone();
        State { grammar: Arc::clone(grammar), matcher, lexer, tokens: Vec::new() }
    }

    /// Runs `work`; when it fails, once more on a state that owns its cache. The cache of the
    /// grammar keeps an error of any of its states for good, so only the second failure counts.
    fn step<T>(
        &mut self,
        work: impl Fn(&mut Matcher) -> Result<T, anyhow::Error>,
    ) -> Result<T, Failure> {
        if let Ok(value) = work(&mut self.matcher) {
            return Ok(value);
        }
        *lock(&self.grammar.shared) = self.grammar.fresh();
        let own = self.grammar.fresh();
        (self.matcher, self.lexer) = (own.matcher, own.lexer);
        let replayed = self.matcher.consume_tokens(&self.tokens);
        replayed.and_then(|()| work(&mut self.matcher)).map_err(|e| failure_of(&self.matcher, &e))
    }

    /// Takes tokens from the front of `tokens` while the grammar allows them, and says how many.
    pub fn accept(&mut self, tokens: &[u32]) -> Result<usize, Failure> {
        let num_tokens = self.grammar.vocabulary.num_tokens;
        let known = tokens.iter().position(|id| *id as usize >= num_tokens).unwrap_or(tokens.len());
        let taken = self.step(|matcher| matcher.try_consume_tokens(&tokens[..known]))?;
        self.tokens.extend_from_slice(&tokens[..taken]);
        Ok(taken)
    }

    /// Sets bit i of `words` when token i may come next. Words past the vocabulary become 0.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let usable = &Arc::clone(&self.grammar).vocabulary.usable;
        if words.len() < usable.len() {
            return Err(Failure::invalid(format!(
                "the mask has {} words, the vocabulary needs {}",
                words.len(),
                usable.len()
            )));
        }
        let set = self.step(|matcher| {
            let set = matcher.compute_mask_or_eos()?;
            let empty = set.as_slice().iter().zip(usable).all(|(word, usable)| word & usable == 0);
            anyhow::ensure!(!empty, "{NO_TOKEN}");
            Ok(set)
        })?;
        self.lexer.count();
        words.fill(0);
        for (to, (from, usable)) in words.iter_mut().zip(set.as_slice().iter().zip(usable)) {
            *to = from & usable;
        }
        Ok(())
    }

    /// Whether nothing can follow but a token that ends a generation, or one has come.
    #[cfg(test)]
    pub fn is_stopped(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

#[cfg(test)]
impl Clone for State {
    fn clone(&self) -> State {
        State {
            grammar: Arc::clone(&self.grammar),
            matcher: self.matcher.clone(),
            lexer: Arc::clone(&self.lexer),
            tokens: self.tokens.clone(),
        }
    }
}

const NO_TOKEN: &str = "no token of the vocabulary can continue the grammar here";

fn failure_of(matcher: &Matcher, error: &anyhow::Error) -> Failure {
    let text = error.to_string();
    let reason = text.split(['\n']).next().unwrap_or_default();
    let code = match matcher.stop_reason() {
        StopReason::LexerTooComplex | StopReason::ParserTooComplex => Code::Limit,
        _ if text.contains("panic:") => Code::Internal,
        _ => Code::Limit,
    };
    let reason = if reason == "NoExtensionBias" { NO_TOKEN } else { reason };
    Failure::new(code, format!("grammar: {reason}"))
}
