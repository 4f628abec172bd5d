//! Why a template failed, and what it may still spend.

use std::cell::Cell;

use crate::budget;

/// The kind of a failure; it decides the code at the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The source is no template.
    Syntax,
    /// raise_exception: the message is the template's own.
    Raised,
    /// An undefined value was used.
    Undefined,
    /// A wrong type or value, as Python says it.
    Value,
    /// Instructions, recursion, memory or output are used up.
    Limit,
}

/// A failure with the line of the template where it happened; 0 = not known yet.
#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
    pub line: u32,
}

pub type Res<T> = Result<T, Box<Error>>;

impl Error {
    pub fn boxed(kind: Kind, message: impl Into<String>) -> Box<Error> {
        Box::new(Error { kind, message: message.into(), line: 0 })
    }
}

pub fn fail<T>(message: impl Into<String>) -> Res<T> {
    Err(Error::boxed(Kind::Value, message))
}

pub fn limit<T>(message: impl Into<String>) -> Res<T> {
    Err(Error::boxed(Kind::Limit, message))
}

/// Adds the line to an error that has none.
pub fn at<T>(result: Res<T>, line: u32) -> Res<T> {
    result.map_err(|mut error| {
        if error.line == 0 {
            error.line = line;
        }
        error
    })
}

thread_local! {
    /// Instructions left to the rendering on this thread.
    static FUEL: Cell<u64> = const { Cell::new(0) };
}

pub fn set_fuel(fuel: u64) {
    FUEL.set(fuel);
}

/// Spends instructions. A rendering whose caller has left ends here too.
#[inline]
pub fn charge(amount: u64) -> Res<()> {
    let left = FUEL.get();
    if left < amount {
        FUEL.set(0);
        return limit("ran more instructions than allowed");
    }
    FUEL.set(left - amount);
    need_room(0)?;
    if left / 256 != (left - amount) / 256 && budget::is_abandoned() {
        return limit("took longer than allowed");
    }
    Ok(())
}

/// A result exists at most as often while it is made: the growing buffer, its old half, the text.
const COPIES: usize = 2;

/// Refuses when `bytes` more would leave less than the reserve of the memory bound.
#[inline]
pub fn need_room(bytes: usize) -> Res<()> {
    if bytes as u64 > budget::bytes_above_reserve() || budget::bytes_above_reserve() == 0 {
        return limit("held more than the allowed bytes of memory");
    }
    Ok(())
}

/// Spends what reading `amount` bytes costs; less than an instruction's worth is part of the step
/// that reads.
pub fn charge_read(amount: usize) -> Res<()> {
    match amount / BYTES_PER_INSTRUCTION {
        0 => Ok(()),
        instructions => charge(instructions as u64),
    }
}

/// Bytes or items that an instruction works on: about what copying takes as long as a step.
const BYTES_PER_INSTRUCTION: usize = 4096;

/// Spends what work over `amount` bytes or items costs, before the work is done. A result that the
/// memory bound has no room for is refused here, because a thread that meets the bound inside the
/// allocator is lost.
pub fn charge_work(amount: usize) -> Res<()> {
    need_room(amount.saturating_mul(COPIES))?;
    charge(1 + (amount / BYTES_PER_INSTRUCTION) as u64)
}
