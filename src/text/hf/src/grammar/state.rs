//! Where one answer stands in its grammar.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::StopReason;
use llguidance::{Matcher, TokenParser};

use super::masks::LexerMasks;
use super::vocabulary::Vocabulary;
use crate::{Code, Failure};

/// Bytes of masks that the answers of one lexer share: those of 600 states of the lexer at 50,000
/// tokens, of 120 at 260,000.
const MAX_MASK_BYTES: usize = 4 << 20;

/// A compiled grammar. Its states share one cache of the lexer, which is behind a lock: one step
/// runs at a time.
pub struct Grammar {
    vocabulary: Arc<Vocabulary>,
    /// Never advanced: what a state is built from when the shared cache has met a limit.
    pristine: TokenParser,
    /// The state at the start with the cache that all states share.
    shared: Mutex<Matcher>,
    /// Keywords of the schema that are not enforced, each as its place.
    pub ignored: Vec<String>,
}

/// The state of one answer: a pure function of the grammar and of `tokens`. One thread at a time.
pub struct State {
    grammar: Arc<Grammar>,
    matcher: Matcher,
    tokens: Vec<u32>,
}

fn lock(shared: &Mutex<Matcher>) -> std::sync::MutexGuard<'_, Matcher> {
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
    fn fresh(&self) -> Matcher {
        at_start(&self.vocabulary, &self.pristine)
    }

    #[cfg(test)]
    pub fn parser(&self) -> TokenParser {
        self.pristine.deep_clone()
    }
}

fn at_start(vocabulary: &Vocabulary, pristine: &TokenParser) -> Matcher {
    let mut parser = pristine.deep_clone();
    let masks = LexerMasks::new(Arc::clone(&vocabulary.tree), MAX_MASK_BYTES);
    parser.bias_computer = Arc::new(masks);
    Matcher::new(Ok(parser))
}

impl State {
    pub fn new(grammar: &Arc<Grammar>) -> State {
        let matcher = lock(&grammar.shared).clone();
        State { grammar: Arc::clone(grammar), matcher, tokens: Vec::new() }
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
        self.matcher = self.grammar.fresh();
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
        words.fill(0);
        for (to, (from, usable)) in words.iter_mut().zip(set.as_slice().iter().zip(usable)) {
            *to = from & usable;
        }
        Ok(())
    }

    /// Whether nothing can follow but a token that ends a generation, or one has come.
    pub fn is_stopped(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

impl Clone for State {
    fn clone(&self) -> State {
        State {
            grammar: Arc::clone(&self.grammar),
            matcher: self.matcher.clone(),
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
