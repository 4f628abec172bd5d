//! Byte-level BPE, chat templates (baton_text.h) and grammars (baton_grammar.h) behind a C ABI.
//! Nothing here is public Rust: the ABI is the only way in, and no panic leaves it.

mod abi;
mod bpe;
mod budget;
mod grammar;
mod grammar_abi;
mod jinja;
mod strftime;
mod template;

/// Counts what a rendering thread holds; every other thread passes straight through.
#[global_allocator]
static ALLOCATOR: budget::CountingAllocator = budget::CountingAllocator;

/// Why a call failed, as the ABI's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidArgument = 1,
    Limit = 2,
    Raised = 3,
    Internal = 4,
    Busy = 5,
}

/// A failed call: its code and a message for a person.
#[derive(Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Failure::new(Code::InvalidArgument, message)
    }

    pub fn limit(message: impl Into<String>) -> Self {
        Failure::new(Code::Limit, message)
    }

    pub fn busy(message: impl Into<String>) -> Self {
        Failure::new(Code::Busy, message)
    }
}

/// The message of a caught panic.
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_string());
    format!("caught a panic: {text}")
}
