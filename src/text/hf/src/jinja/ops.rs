//! Python's operators.

use std::cmp::Ordering;
use std::rc::Rc;

use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{FromPrimitive, Signed, ToPrimitive, Zero};

use super::ast::{BinOp, CmpOp};
use super::error::{charge, charge_read, charge_work, fail, limit, Error, Kind, Res};
use super::escape::escape;
use super::percent;
use super::value::{Text, Value};

/// Bits of the largest integer; Python prints no more than 4300 digits, which is 14,300 bits.
const MAX_BITS: u64 = 1 << 16;

/// A number as Python's arithmetic sees it; True is 1.
pub enum Number {
    Int(BigInt),
    Float(f64),
}

pub fn number(value: &Value) -> Option<Number> {
    Some(match value {
        Value::Bool(value) => Number::Int(BigInt::from(i64::from(*value))),
        Value::Int(value) => Number::Int(BigInt::from(*value)),
        Value::Big(value) => Number::Int((**value).clone()),
        Value::Float(value) => Number::Float(*value),
        _ => return None,
    })
}

/// An integer; None for anything else. True is 1.
pub fn integer(value: &Value) -> Option<BigInt> {
    match number(value) {
        Some(Number::Int(value)) => Some(value),
        _ => None,
    }
}

/// An integer as a place or a count.
pub fn small(value: &Value) -> Res<i64> {
    match value {
        Value::Bool(value) => Ok(i64::from(*value)),
        Value::Int(value) => Ok(*value),
        Value::Big(value) => Ok(if value.is_negative() { i64::MIN } else { i64::MAX }),
        Value::Undefined(why) => undefined(why),
        other => {
            fail(format!("'{}' object cannot be interpreted as an integer", other.type_name()))
        }
    }
}

pub fn undefined<T>(why: &str) -> Res<T> {
    Err(Error::boxed(Kind::Undefined, why))
}

pub fn float_of(value: &BigInt) -> Res<f64> {
    match value.to_f64().filter(|f| f.is_finite()) {
        Some(float) => Ok(float),
        None => fail("int too large to convert to float"),
    }
}

fn sign_of(op: BinOp) -> &'static str {
    match op {
        BinOp::Add => "+",
        BinOp::Sub => "-",
        BinOp::Mul => "*",
        BinOp::Div => "/",
        BinOp::FloorDiv => "//",
        BinOp::Mod => "%",
        BinOp::Pow => "** or pow()",
    }
}

pub fn binary(op: BinOp, left: &Value, right: &Value) -> Res<Value> {
    if let (Value::Int(a), Value::Int(b)) = (left, right) {
        let fast = match op {
            BinOp::Add => a.checked_add(*b),
            BinOp::Sub => a.checked_sub(*b),
            BinOp::Mul => a.checked_mul(*b),
            BinOp::FloorDiv if *b > 0 => Some(a.div_euclid(*b)),
            BinOp::Mod if *b > 0 => Some(a.rem_euclid(*b)),
            _ => None,
        };
        if let Some(value) = fast {
            return Ok(Value::Int(value));
        }
    }
    if let (BinOp::Mod, Value::Str(format)) = (op, left) {
        return percent::format(format, right);
    }
    for value in [left, right] {
        if let Value::Undefined(why) = value {
            return undefined(why);
        }
    }
    match (number(left), number(right)) {
        (Some(a), Some(b)) => arithmetic(op, a, b),
        _ => sequence(op, left, right),
    }
}

fn arithmetic(op: BinOp, a: Number, b: Number) -> Res<Value> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => integers(op, a, b),
        (Number::Int(a), Number::Float(b)) => floats(op, float_of(&a)?, b),
        (Number::Float(a), Number::Int(b)) => floats(op, a, float_of(&b)?),
        (Number::Float(a), Number::Float(b)) => floats(op, a, b),
    }
}

fn integers(op: BinOp, a: BigInt, b: BigInt) -> Res<Value> {
    charge_work(((a.bits() + b.bits()) / 8) as usize)?;
    if b.is_zero() && matches!(op, BinOp::Div | BinOp::FloorDiv | BinOp::Mod) {
        return fail(match op {
            BinOp::Div => "division by zero",
            _ => "integer division or modulo by zero",
        });
    }
    let value = match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::FloorDiv => a.div_floor(&b),
        BinOp::Mod => a.mod_floor(&b),
        BinOp::Div => return divide(&a, &b),
        BinOp::Pow => return power(&a, &b),
    };
    if value.bits() > MAX_BITS {
        return limit(format!("an integer of more than {MAX_BITS} bits"));
    }
    Ok(Value::big(value))
}

/// The nearest double of a / b, also where a and b are too large for one.
fn divide(a: &BigInt, b: &BigInt) -> Res<Value> {
    const EXACT_BITS: u64 = 53;
    if a.bits() <= EXACT_BITS && b.bits() <= EXACT_BITS {
        return Ok(Value::Float(float_of(a)? / float_of(b)?));
    }
    // A quotient of 66 bits or more with a last bit that says whether something is left over.
    let shift = 66 + b.bits() as i64 - a.bits() as i64;
    let (top, bottom) = match u64::try_from(shift) {
        Ok(left) => (a.abs() << left, b.abs()),
        Err(_) => (a.abs(), b.abs() << shift.unsigned_abs()),
    };
    let (mut quotient, rest) = top.div_rem(&bottom);
    if !rest.is_zero() {
        quotient |= BigInt::from(1);
    }
    let scaled = quotient.to_f64().unwrap_or(f64::INFINITY);
    let half = -(shift / 2);
    let value = scaled * 2f64.powi(half as i32) * 2f64.powi((-shift - half) as i32);
    if !value.is_finite() {
        return fail("integer division result too large for a float");
    }
    Ok(Value::Float(if a.is_negative() != b.is_negative() { -value } else { value }))
}

fn power(a: &BigInt, b: &BigInt) -> Res<Value> {
    if b.is_negative() {
        return floats(BinOp::Pow, float_of(a)?, float_of(b)?);
    }
    if a.abs() <= BigInt::from(1) {
        let odd = b.is_odd();
        let value =
            if b.is_zero() || (a.is_negative() && !odd) { BigInt::from(1) } else { a.clone() };
        return Ok(Value::big(value));
    }
    let exponent = b.to_u32().filter(|e| u64::from(*e).saturating_mul(a.bits()) <= MAX_BITS * 2);
    let Some(exponent) = exponent else {
        return limit(format!("an integer of more than {MAX_BITS} bits"));
    };
    charge_work((u64::from(exponent) * a.bits()) as usize)?;
    let value = a.pow(exponent);
    if value.bits() > MAX_BITS {
        return limit(format!("an integer of more than {MAX_BITS} bits"));
    }
    Ok(Value::big(value))
}

fn floats(op: BinOp, a: f64, b: f64) -> Res<Value> {
    if b == 0.0 && matches!(op, BinOp::Div | BinOp::FloorDiv | BinOp::Mod) {
        return fail(match op {
            BinOp::Div => "float division by zero",
            BinOp::FloorDiv => "float floor division by zero",
            _ => "float modulo",
        });
    }
    Ok(Value::Float(match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::Div => a / b,
        BinOp::FloorDiv => floor_mod(a, b).0,
        BinOp::Mod => floor_mod(a, b).1,
        BinOp::Pow => {
            if a == 0.0 && b < 0.0 {
                return fail("0.0 cannot be raised to a negative power");
            }
            if a < 0.0 && b.fract() != 0.0 {
                return fail("complex numbers are not supported");
            }
            let value = a.powf(b);
            if value.is_infinite() && a.is_finite() && b.is_finite() {
                return fail("(34, 'Numerical result out of range')");
            }
            value
        }
    }))
}

/// CPython's float_divmod.
fn floor_mod(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 {
        if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(b);
    }
    let floor = if quotient != 0.0 {
        let floor = quotient.floor();
        if quotient - floor > 0.5 {
            floor + 1.0
        } else {
            floor
        }
    } else {
        0f64.copysign(a / b)
    };
    (floor, rest)
}

fn sequence(op: BinOp, left: &Value, right: &Value) -> Res<Value> {
    match (op, left, right) {
        (BinOp::Add, Value::Str(a), Value::Str(b)) => add_texts(a, b),
        (BinOp::Add, Value::List(a), Value::List(b)) => Value::list(joined(&a.items, &b.items)?),
        (BinOp::Add, Value::Tuple(a), Value::Tuple(b)) => Value::tuple(joined(&a.items, &b.items)?),
        (BinOp::Mul, items, times) | (BinOp::Mul, times, items)
            if matches!(items, Value::Str(_) | Value::List(_) | Value::Tuple(_))
                && integer(times).is_some() =>
        {
            repeat(items, small(times)?)
        }
        (BinOp::Add, Value::Str(_), other) => {
            fail(format!("can only concatenate str (not \"{}\") to str", other.type_name()))
        }
        (BinOp::Add, Value::List(_), other) => {
            fail(format!("can only concatenate list (not \"{}\") to list", other.type_name()))
        }
        _ => fail(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            sign_of(op),
            left.type_name(),
            right.type_name()
        )),
    }
}

fn add_texts(a: &Text, b: &Text) -> Res<Value> {
    charge_work(a.text.len() + b.text.len())?;
    let safe = a.safe || b.safe;
    let part = |text: &Text| -> Res<Rc<str>> {
        if safe && !text.safe {
            Ok(escape(&text.text)?.into())
        } else {
            Ok(Rc::clone(&text.text))
        }
    };
    let mut out = String::with_capacity(a.text.len() + b.text.len());
    out.push_str(&part(a)?);
    out.push_str(&part(b)?);
    Ok(Value::Str(Text { text: out.into(), safe }))
}

fn joined(a: &[Value], b: &[Value]) -> Res<Vec<Value>> {
    charge_work((a.len() + b.len()).saturating_mul(size_of::<Value>()))?;
    Ok(a.iter().chain(b).cloned().collect())
}

fn repeat(value: &Value, times: i64) -> Res<Value> {
    let times = usize::try_from(times).unwrap_or(0);
    match value {
        Value::Str(text) => {
            charge_work(text.text.len().saturating_mul(times))?;
            Ok(Value::str_like(text.text.repeat(times), text))
        }
        Value::List(list) | Value::Tuple(list) => {
            let bytes = list.items.len().saturating_mul(size_of::<Value>()).saturating_mul(times);
            charge_work(bytes)?;
            // No bytes pay for the rounds over an empty list.
            let times = if list.items.is_empty() { 0 } else { times };
            let mut items = Vec::with_capacity(list.items.len() * times);
            for _ in 0..times {
                items.extend(list.items.iter().cloned());
            }
            if matches!(value, Value::List(_)) {
                Value::list(items)
            } else {
                Value::tuple(items)
            }
        }
        _ => fail("cannot be repeated"),
    }
}

pub fn negate(value: &Value, keep: bool) -> Res<Value> {
    if let Value::Undefined(why) = value {
        return undefined(why);
    }
    match number(value) {
        Some(Number::Int(number)) => Ok(Value::big(if keep { number } else { -number })),
        Some(Number::Float(number)) => Ok(Value::Float(if keep { number } else { -number })),
        None => fail(format!(
            "bad operand type for unary {}: '{}'",
            if keep { "+" } else { "-" },
            value.type_name()
        )),
    }
}

/// Python's ==; the same object is equal to itself.
pub fn equal(a: &Value, b: &Value) -> Res<bool> {
    charge(1)?;
    Ok(match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            Rc::ptr_eq(&a.text, &b.text) || {
                charge_work(a.text.len().min(b.text.len()))?;
                a.text == b.text
            }
        }
        (Value::None, Value::None) | (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            Rc::ptr_eq(a, b) || all_equal(&a.items, &b.items)?
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if Rc::ptr_eq(a, b) {
                return Ok(true);
            }
            if a.entries.len() != b.entries.len() {
                return Ok(false);
            }
            for (key, value) in &a.entries {
                match b.get(key)? {
                    Some(other) if equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len() == b.len()
                && (a.len() == 0 || (a.start == b.start && (a.len() == 1 || a.step == b.step)))
        }
        (Value::View(a), Value::View(b)) => {
            a.kind == b.kind && all_equal(&a.iterate()?, &b.iterate()?)?
        }
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => compare_numbers(&a, &b) == Some(Ordering::Equal),
            (None, None) => same_object(a, b)?,
            _ => false,
        },
    })
}

fn all_equal(a: &[Value], b: &[Value]) -> Res<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (a, b) in a.iter().zip(b) {
        if !equal(a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Python's `is`.
pub fn same_object(a: &Value, b: &Value) -> Res<bool> {
    Ok(match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        // CPython keeps one object for each small integer.
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Str(a), Value::Str(b)) => {
            charge_read(a.text.len().min(b.text.len()))?;
            Rc::ptr_eq(&a.text, &b.text) || a.text == b.text
        }
        (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
        (Value::Tuple(a), Value::Tuple(b)) => {
            Rc::ptr_eq(a, b) || (a.items.is_empty() && b.items.is_empty())
        }
        (Value::Dict(a), Value::Dict(b)) => Rc::ptr_eq(a, b),
        (Value::Func(a), Value::Func(b)) => a == b,
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
        (Value::Iter(a), Value::Iter(b)) => Rc::ptr_eq(a, b),
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Cycler(a), Value::Cycler(b)) => Rc::ptr_eq(a, b),
        (Value::Joiner(a), Value::Joiner(b)) => Rc::ptr_eq(a, b),
        _ => false,
    })
}

fn compare_numbers(a: &Number, b: &Number) -> Option<Ordering> {
    match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(b)),
        (Number::Float(a), Number::Float(b)) => a.partial_cmp(b),
        (Number::Int(a), Number::Float(b)) => int_float(a, *b),
        (Number::Float(a), Number::Int(b)) => int_float(b, *a).map(Ordering::reverse),
    }
}

fn int_float(a: &BigInt, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b.is_infinite() {
        return Some(if b > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let whole = BigInt::from_f64(b.floor())?;
    Some(match a.cmp(&whole) {
        Ordering::Equal if b > b.floor() => Ordering::Less,
        order => order,
    })
}

/// Python's order of two values; None: neither less, equal nor greater (NaN).
pub fn order(a: &Value, b: &Value, op: &str) -> Res<Option<Ordering>> {
    charge(1)?;
    for value in [a, b] {
        if let Value::Undefined(why) = value {
            return undefined(why);
        }
    }
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            charge_work(a.text.len().min(b.text.len()))?;
            Ok(Some(a.text.cmp(&b.text)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b)? {
                    return order(a, b, op);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => Ok(compare_numbers(&a, &b)),
            _ => fail(format!(
                "'{op}' not supported between instances of '{}' and '{}'",
                a.type_name(),
                b.type_name()
            )),
        },
    }
}

pub fn compare(op: CmpOp, a: &Value, b: &Value) -> Res<bool> {
    Ok(match op {
        CmpOp::Eq => equal(a, b)?,
        CmpOp::Ne => !equal(a, b)?,
        CmpOp::Lt => order(a, b, "<")? == Some(Ordering::Less),
        CmpOp::Le => matches!(order(a, b, "<=")?, Some(Ordering::Less | Ordering::Equal)),
        CmpOp::Gt => order(a, b, ">")? == Some(Ordering::Greater),
        CmpOp::Ge => matches!(order(a, b, ">=")?, Some(Ordering::Greater | Ordering::Equal)),
        CmpOp::In => contains(b, a)?,
        CmpOp::NotIn => !contains(b, a)?,
    })
}

pub fn contains(container: &Value, item: &Value) -> Res<bool> {
    match container {
        Value::Str(text) => match item {
            Value::Str(part) => {
                charge_work(text.text.len().max(part.text.len()))?;
                Ok(text.text.contains(&*part.text))
            }
            other => fail(format!(
                "'in <string>' requires string as left operand, not {}",
                other.type_name()
            )),
        },
        Value::Dict(dict) => Ok(dict.get(item)?.is_some()),
        Value::List(list) | Value::Tuple(list) => any_equal(&list.items, item),
        Value::Namespace(_) | Value::Cycler(_) | Value::Joiner(_) | Value::Macro(_) => {
            fail(format!("argument of type '{}' is not iterable", container.type_name()))
        }
        other if other.is_iterable() => any_equal(&other.iterate()?, item),
        other => fail(format!("argument of type '{}' is not iterable", other.type_name())),
    }
}

fn any_equal(items: &[Value], item: &Value) -> Res<bool> {
    for candidate in items {
        if equal(candidate, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The places that a slice takes of `len` items, as Python counts them.
pub fn slice_indices(slice: &[Value; 3], len: usize) -> Res<Vec<usize>> {
    let bound = |value: &Value| -> Res<Option<i64>> {
        match value {
            Value::None => Ok(None),
            Value::Bool(_) | Value::Int(_) | Value::Big(_) => small(value).map(Some),
            Value::Undefined(_) | Value::Float(_) | _ => {
                fail("slice indices must be integers or None or have an __index__ method")
            }
        }
    };
    let len = len as i64;
    let step = bound(&slice[2])?.unwrap_or(1);
    if step == 0 {
        return fail("slice step cannot be zero");
    }
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let place = |value: Option<i64>, default: i64| match value {
        None => default,
        Some(value) if value < 0 => value.saturating_add(len).max(low),
        Some(value) => value.min(high),
    };
    let mut at = place(bound(&slice[0])?, if step > 0 { low } else { high });
    let end = place(bound(&slice[1])?, if step > 0 { high } else { low });
    let span = if step > 0 { end.saturating_sub(at) } else { at.saturating_sub(end) };
    let count = usize::try_from(span).unwrap_or(0).div_ceil(step.unsigned_abs() as usize);
    charge_work(count.saturating_mul(size_of::<usize>()))?;
    let mut out = Vec::with_capacity(count);
    while (step > 0 && at < end) || (step < 0 && at > end) {
        out.push(at as usize);
        at = at.saturating_add(step);
    }
    Ok(out)
}
