//! Python's int(), float() and round().

use num_bigint::BigInt;
use num_traits::FromPrimitive;

use super::error::{charge_work, Res};
use super::ops::{self, undefined, Number};
use super::unicode;
use super::value::Value;

/// Digits of any script as ASCII, without the '_' that Python allows between two digits.
fn plain_digits(text: &str) -> Option<String> {
    let text = text.trim_matches(unicode::is_space);
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut last_is_digit = false;
    while let Some(c) = chars.next() {
        if c == '_' {
            let next_is_digit = chars.peek().is_some_and(|c| c.is_alphanumeric());
            if !last_is_digit || !next_is_digit {
                return None;
            }
            continue;
        }
        last_is_digit = c.is_alphanumeric();
        match unicode::decimal_value(c) {
            Some(digit) => out.push(char::from_digit(digit, 10).unwrap_or('0')),
            None => out.push(c),
        }
    }
    Some(out)
}

/// int(text, base); None: no integer.
pub fn parse_int(text: &str, base: i64) -> Option<BigInt> {
    let plain = plain_digits(text)?;
    let (sign, digits) = match plain.strip_prefix(['-', '+']) {
        Some(digits) => (plain.starts_with('-'), digits),
        None => (false, plain.as_str()),
    };
    let prefix = digits.get(..2).map(str::to_ascii_lowercase);
    let prefix_base = match prefix.as_deref() {
        Some("0x") => 16,
        Some("0o") => 8,
        Some("0b") => 2,
        _ => 0,
    };
    let (radix, digits) = match base {
        0 if prefix_base > 0 => (prefix_base, &digits[2..]),
        0 if digits.len() > 1 && digits.starts_with('0') && digits.trim_matches('0').is_empty() => {
            (10, "0")
        }
        0 if digits.len() > 1 && digits.starts_with('0') => return None,
        0 => (10, digits),
        base if prefix_base > 0 && base == prefix_base => (base, &digits[2..]),
        base => (base, digits),
    };
    let is_right = (2..=36).contains(&radix)
        && !digits.is_empty()
        && digits.len() <= 4300
        && digits.chars().all(|c| c.is_digit(radix as u32));
    if !is_right {
        return None;
    }
    let value = BigInt::parse_bytes(digits.as_bytes(), radix as u32)?;
    Some(if sign { -value } else { value })
}

/// float(text); None: no number.
pub fn parse_float(text: &str) -> Option<f64> {
    let plain = plain_digits(text)?;
    let unsigned = plain.strip_prefix(['-', '+']).unwrap_or(&plain).to_ascii_lowercase();
    let value = match unsigned.as_str() {
        "inf" | "infinity" => f64::INFINITY,
        "nan" => f64::NAN,
        digits => {
            let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && digits.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | 'e' | '+' | '-'));
            is_number.then(|| digits.parse::<f64>().ok()).flatten()?
        }
    };
    Some(if plain.starts_with('-') { -value } else { value })
}

pub fn to_int(value: &Value, default: Value, base: i64) -> Res<Value> {
    let truncated = |number: f64| BigInt::from_f64(number.trunc()).map(Value::big);
    Ok(match value {
        Value::Undefined(why) => return undefined(why),
        Value::Str(text) => {
            charge_work(text.text.len().saturating_mul(2))?;
            match parse_int(&text.text, base) {
                Some(number) => Value::big(number),
                None => parse_float(&text.text).and_then(truncated).unwrap_or(default),
            }
        }
        other => match ops::number(other) {
            Some(Number::Int(number)) => Value::big(number),
            Some(Number::Float(number)) => match truncated(number) {
                Some(value) => value,
                // int(float("inf")) is an OverflowError, which the filter catches only the
                // second time.
                None if number.is_nan() => default,
                None => return super::error::fail("cannot convert float infinity to integer"),
            },
            None => default,
        },
    })
}

pub fn to_float(value: &Value, default: Value) -> Res<Value> {
    Ok(match value {
        Value::Undefined(why) => return undefined(why),
        Value::Str(text) => {
            charge_work(text.text.len().saturating_mul(2))?;
            parse_float(&text.text).map_or(default, Value::Float)
        }
        other => match ops::number(other) {
            Some(Number::Int(number)) => Value::Float(ops::float_of(&number)?),
            Some(Number::Float(number)) => Value::Float(number),
            None => default,
        },
    })
}

/// round(number, precision): correctly rounded from the number's exact decimal value, halves to
/// even.
pub fn round_float(number: f64, precision: i64) -> f64 {
    if !number.is_finite() || precision > 323 {
        return number;
    }
    if precision < -308 {
        return 0f64.copysign(number);
    }
    if precision >= 0 {
        let text = format!("{number:.*}", precision as usize);
        return text.parse().unwrap_or(number);
    }
    let cut = precision.unsigned_abs() as usize;
    // The fraction only decides a tie, which it breaks upwards.
    let exact = BigInt::from_f64(number.abs().trunc()).unwrap_or_default();
    let has_fraction = number.fract() != 0.0;
    let unit = BigInt::from(10).pow(cut as u32);
    let rest = &exact % &unit;
    let down = &exact - &rest;
    let twice: BigInt = &rest * 2;
    let is_odd = num_integer::Integer::is_odd(&(&down / &unit));
    let up = twice > unit || (twice == unit && (has_fraction || is_odd));
    let value = if up { down + unit } else { down };
    let rounded: f64 = value.to_string().parse().unwrap_or(0.0);
    rounded.copysign(number)
}
