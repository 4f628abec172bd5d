//! The C functions of baton_grammar.h, by the rules of abi.rs.

use std::sync::Arc;
use std::time::Duration;

use crate::abi::{
    answer, array, free, guarded, into_owned, reference, text, Owned, Slice, MAX_TOKENS,
};
use crate::budget::Bounds;
use crate::grammar::{self, Grammar, Kind, Limits, State, Vocabulary};
use crate::Failure;

/// baton_grammar_vocabulary_spec
#[repr(C)]
pub struct CVocabularySpec {
    token_bytes: Slice,
    token_ends: *const u32,
    num_tokens: usize,
    end_ids: *const u32,
    num_end_ids: usize,
}

/// baton_grammar_limits
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CLimits {
    max_text_bytes: u64,
    max_values: u64,
    max_enum_values: u64,
    max_refs: u64,
    max_depth: u64,
    max_memory_bytes: u64,
    timeout_ms: u64,
}

/// baton_grammar_memory
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CMemory {
    mask_bytes: u64,
    lexer_bytes: u64,
}

fn kind_of(kind: u32) -> Result<Kind, Failure> {
    const KINDS: [Kind; 7] = [
        Kind::JsonObject,
        Kind::SchemaStrict,
        Kind::SchemaLoose,
        Kind::Regex,
        Kind::Choice,
        Kind::Lark,
        Kind::StructuralTag,
    ];
    KINDS.get(kind as usize).copied().ok_or_else(|| {
        Failure::invalid(format!("kind {kind} is not one of 0..{}", KINDS.len() - 1))
    })
}

fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn limits_of(limits: &CLimits) -> Limits {
    Limits {
        max_text_bytes: size(limits.max_text_bytes),
        max_values: limits.max_values,
        max_enum_values: size(limits.max_enum_values),
        max_refs: size(limits.max_refs),
        max_depth: size(limits.max_depth),
        bounds: Bounds {
            memory_bytes: limits.max_memory_bytes,
            timeout: Duration::from_millis(limits.timeout_ms.min(3_600_000)),
        },
    }
}

/// SAFETY: the pointers of `spec` are as baton_grammar.h says.
unsafe fn read_vocabulary(spec: &CVocabularySpec) -> Result<Vocabulary, Failure> {
    let bytes =
        array("token_bytes", spec.token_bytes.data, spec.token_bytes.size, usize::MAX >> 1)?;
    let ends = array("token_ends", spec.token_ends, spec.num_tokens, MAX_TOKENS)?;
    let end_ids = array("end_ids", spec.end_ids, spec.num_end_ids, MAX_TOKENS)?;
    let mut tokens = Vec::with_capacity(ends.len());
    let mut start = 0usize;
    for (id, end) in ends.iter().enumerate() {
        let end = *end as usize;
        let Some(token) = bytes.get(start..end) else {
            return Err(Failure::invalid(format!(
                "token {id} spans bytes {start}..{end} of {}",
                bytes.len()
            )));
        };
        tokens.push(token);
        start = end;
    }
    Vocabulary::new(&tokens, end_ids)
}

/// SAFETY: a non-null pointer is valid for the call, and no other call uses the state.
unsafe fn state_of<'a>(state: *mut State) -> Result<&'a mut State, Failure> {
    state.as_mut().ok_or_else(|| Failure::invalid("state is null"))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_vocabulary_create(
    spec: *const CVocabularySpec,
    out: *mut *mut Arc<Vocabulary>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        read_vocabulary(reference("spec", spec)?).map(|made| Box::new(Arc::new(made)))
    };
    answer(error, work, |made| out.write(Box::into_raw(made)))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_vocabulary_memory(
    vocabulary: *const Arc<Vocabulary>,
) -> CMemory {
    let read = || {
        let memory = &reference("vocabulary", vocabulary)?.memory;
        let (masks, lexers) = (memory.mask_bytes(), memory.lexer_bytes());
        Ok(CMemory { mask_bytes: masks as u64, lexer_bytes: lexers as u64 })
    };
    guarded(read).unwrap_or_default()
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_vocabulary_free(vocabulary: *mut Arc<Vocabulary>) {
    free(vocabulary);
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_compile(
    vocabulary: *const Arc<Vocabulary>,
    kind: u32,
    source: Slice,
    limits: *const CLimits,
    out: *mut *mut Arc<Grammar>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        let vocabulary = reference("vocabulary", vocabulary)?;
        let limits = limits_of(reference("limits", limits)?);
        let source = text("the grammar", source)?;
        let made = grammar::compile(vocabulary, kind_of(kind)?, source, &limits)?;
        Ok(Box::new(Arc::new(made)))
    };
    answer(error, work, |made| out.write(Box::into_raw(made)))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_ignored(
    grammar: *const Arc<Grammar>,
    out: *mut Owned<u8>,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        Ok(reference("grammar", grammar)?.ignored.join("\n").into_bytes())
    };
    answer(error, work, |joined| out.write(into_owned(joined)))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_free(grammar: *mut Arc<Grammar>) {
    free(grammar);
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_state_create(
    grammar: *const Arc<Grammar>,
    out: *mut *mut State,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        Ok(Box::new(State::new(reference("grammar", grammar)?)))
    };
    answer(error, work, |made| out.write(Box::into_raw(made)))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_state_accept(
    state: *mut State,
    ids: *const u32,
    num_ids: usize,
    out: *mut usize,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        reference("out", out)?;
        state_of(state)?.accept(array("ids", ids, num_ids, MAX_TOKENS)?)
    };
    answer(error, work, |taken| out.write(taken))
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_state_mask(
    state: *mut State,
    words: *mut u32,
    num_words: usize,
    error: *mut Owned<u8>,
) -> i32 {
    let work = || {
        array("words", words, num_words, MAX_TOKENS)?;
        let words = match num_words {
            0 => &mut [],
            _ => std::slice::from_raw_parts_mut(words, num_words),
        };
        state_of(state)?.mask(words)
    };
    answer(error, work, |()| ())
}

/// # Safety
/// See baton_grammar.h.
#[no_mangle]
pub unsafe extern "C" fn baton_grammar_state_free(state: *mut State) {
    free(state);
}

#[cfg(test)]
#[path = "grammar_abi_tests.rs"]
mod tests;
