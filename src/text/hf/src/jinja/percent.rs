//! Python's `format % values`, and how both kinds of formatting write a number.

use num_bigint::BigInt;
use num_traits::{FromPrimitive, Signed, ToPrimitive};

use super::error::{charge_work, fail, Res};
use super::escape::escape;
use super::ops::{self, Number};
use super::repr;
use super::value::{Text, Value};

/// Width and precision of one field.
const MAX_FIELD: usize = 1 << 20;

#[derive(Default)]
struct Spec {
    minus: bool,
    plus: bool,
    space: bool,
    zero: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// The source of the values for the fields.
struct Source<'a> {
    values: &'a Value,
    next: usize,
    used_mapping: bool,
}

impl Source<'_> {
    fn next(&mut self) -> Res<Value> {
        let at = self.next;
        self.next += 1;
        match self.values {
            Value::Tuple(list) => match list.items.get(at) {
                Some(value) => Ok(value.clone()),
                None => fail("not enough arguments for format string"),
            },
            other if at == 0 => Ok(other.clone()),
            _ => fail("not enough arguments for format string"),
        }
    }

    fn named(&mut self, name: &str) -> Res<Value> {
        self.used_mapping = true;
        let Value::Dict(dict) = self.values else {
            return fail("format requires a mapping");
        };
        match dict.get_str(name)? {
            Some(value) => Ok(value.clone()),
            None => fail(format!("KeyError: '{name}'")),
        }
    }

    fn check_all_used(&self) -> Res<()> {
        let left_over = match self.values {
            Value::Tuple(list) => self.next < list.items.len(),
            Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Namespace(_) => false,
            _ => self.next == 0,
        };
        if left_over && !self.used_mapping {
            return fail("not all arguments converted during string formatting");
        }
        Ok(())
    }
}

pub fn format(format: &Text, values: &Value) -> Res<Value> {
    let mut source = Source { values, next: 0, used_mapping: false };
    let mut out = String::new();
    let mut chars = format.text.chars().peekable();
    charge_work(format.text.len())?;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut value = None;
        if chars.peek() == Some(&'(') {
            chars.next();
            let mut name = String::new();
            let mut level = 1;
            for c in chars.by_ref() {
                level += i32::from(c == '(') - i32::from(c == ')');
                if level == 0 {
                    break;
                }
                name.push(c);
            }
            if level > 0 {
                return fail("incomplete format key");
            }
            value = Some(source.named(&name)?);
        }
        let spec = read_spec(&mut chars, &mut source)?;
        while matches!(chars.peek(), Some('h' | 'l' | 'L')) {
            chars.next();
        }
        let Some(kind) = chars.next() else { return fail("incomplete format") };
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => source.next()?,
        };
        let text = field(&spec, kind, &value, format.safe)?;
        charge_work(text.len() + out.len() / 64)?;
        out.push_str(&text);
    }
    source.check_all_used()?;
    Ok(Value::str_like(out, format))
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn read_spec(chars: &mut Chars, source: &mut Source) -> Res<Spec> {
    let mut spec = Spec::default();
    while let Some(flag) = chars.peek() {
        match flag {
            '-' => spec.minus = true,
            '+' => spec.plus = true,
            ' ' => spec.space = true,
            '0' => spec.zero = true,
            '#' => spec.alternate = true,
            _ => break,
        }
        chars.next();
    }
    if let Some(width) = read_count(chars, source)? {
        spec.minus |= width < 0;
        spec.width = bounded(width.unsigned_abs())?;
    }
    if chars.peek() == Some(&'.') {
        chars.next();
        let precision = read_count(chars, source)?.unwrap_or(0);
        spec.precision = Some(bounded(u64::try_from(precision).unwrap_or(0))?);
    }
    Ok(spec)
}

fn bounded(count: u64) -> Res<usize> {
    match usize::try_from(count).ok().filter(|c| *c <= MAX_FIELD) {
        Some(count) => Ok(count),
        None => fail(format!("a width or precision above {MAX_FIELD}")),
    }
}

fn read_count(chars: &mut Chars, source: &mut Source) -> Res<Option<i64>> {
    if chars.peek() == Some(&'*') {
        chars.next();
        let value = source.next()?;
        if ops::integer(&value).is_none() {
            return fail("* wants int");
        }
        return ops::small(&value).map(Some);
    }
    let mut count: Option<i64> = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        count = Some(count.unwrap_or(0).saturating_mul(10).saturating_add(i64::from(digit)));
        chars.next();
    }
    Ok(count)
}

fn field(spec: &Spec, kind: char, value: &Value, safe: bool) -> Res<String> {
    let text = match kind {
        's' | 'r' | 'a' => {
            let mut text = match kind {
                's' => repr::str(value)?,
                'r' => repr::repr(value)?,
                _ => ascii(&repr::repr(value)?)?,
            };
            if safe && !matches!(value, Value::Str(text) if text.safe) {
                text = escape(&text)?;
            }
            match spec.precision {
                Some(precision) => text.chars().take(precision).collect(),
                None => text,
            }
        }
        'c' => character(value)?,
        'd' | 'i' | 'u' => return integer_field(spec, value, 10, kind),
        'x' | 'X' => return integer_field(spec, value, 16, kind),
        'o' => return integer_field(spec, value, 8, kind),
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => return float_field(spec, value, kind),
        other => {
            return fail(format!("unsupported format character '{other}' (0x{:x})", other as u32))
        }
    };
    pad(spec, "", &text, false)
}

/// `text` in ASCII: at most ten characters for one.
pub fn ascii(text: &str) -> Res<String> {
    charge_work(text.len().saturating_mul(4))?;
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c)
        } else {
            repr::push_escape(c, &mut out)
        }
    }
    Ok(out)
}

fn character(value: &Value) -> Res<String> {
    if let Value::Str(text) = value {
        if text.text.chars().count() == 1 {
            return Ok(text.text.to_string());
        }
    } else if let Some(code) = ops::integer(value) {
        if let Some(c) = code.to_u32().and_then(char::from_u32) {
            return Ok(c.to_string());
        }
        return fail("%c arg not in range(0x110000)");
    }
    fail("%c requires int or char")
}

fn integer_field(spec: &Spec, value: &Value, radix: u32, kind: char) -> Res<String> {
    let number = match ops::number(value) {
        Some(Number::Int(number)) => number,
        Some(Number::Float(number)) if radix == 10 && number.is_finite() => {
            BigInt::from_f64(number.trunc()).unwrap_or_default()
        }
        _ if radix == 10 => {
            return fail(format!(
                "%{kind} format: a real number is required, not {}",
                value.type_name()
            ))
        }
        _ => {
            return fail(format!(
                "%{kind} format: an integer is required, not {}",
                value.type_name()
            ))
        }
    };
    repr::big(&number)?;
    let mut digits = number.abs().to_str_radix(radix);
    if let Some(precision) = spec.precision {
        digits = format!("{digits:0>precision$}");
    }
    let mut sign = sign_text(number.is_negative(), spec.plus, spec.space).to_string();
    if spec.alternate && radix != 10 {
        sign.push_str(if radix == 16 { "0x" } else { "0o" });
    }
    if kind == 'X' {
        (digits, sign) = (digits.to_uppercase(), sign.to_uppercase());
    }
    pad(spec, &sign, &digits, true)
}

fn float_field(spec: &Spec, value: &Value, kind: char) -> Res<String> {
    let number = match ops::number(value) {
        Some(Number::Int(number)) => ops::float_of(&number)?,
        Some(Number::Float(number)) => number,
        None => return fail(format!("must be real number, not {}", value.type_name())),
    };
    let text = float_text(number.abs(), kind, spec.precision.unwrap_or(6), spec.alternate);
    let is_negative = number.is_sign_negative() && !number.is_nan();
    pad(spec, sign_text(is_negative, spec.plus, spec.space), &text, number.is_finite())
}

pub fn sign_text(is_negative: bool, plus: bool, space: bool) -> &'static str {
    match (is_negative, plus, space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn pad(spec: &Spec, sign: &str, body: &str, is_number: bool) -> Res<String> {
    let len = sign.chars().count() + body.chars().count();
    let missing = spec.width.saturating_sub(len);
    charge_work(missing)?;
    let (blanks, zeros) = (" ".repeat(missing), "0".repeat(missing));
    Ok(if spec.minus {
        format!("{sign}{body}{blanks}")
    } else if spec.zero && is_number {
        format!("{sign}{zeros}{body}")
    } else {
        format!("{blanks}{sign}{body}")
    })
}

/// A number that is not negative in the form e, f or g.
pub fn float_text(value: f64, kind: char, precision: usize, alternate: bool) -> String {
    let text = if value.is_nan() {
        "nan".to_string()
    } else if value.is_infinite() {
        "inf".to_string()
    } else {
        match kind.to_ascii_lowercase() {
            'e' => exponent_text(value, precision, alternate),
            'f' => {
                let text = format!("{value:.precision$}");
                if alternate && precision == 0 {
                    text + "."
                } else {
                    text
                }
            }
            _ => general_text(value, precision.max(1), alternate),
        }
    };
    if kind.is_ascii_uppercase() {
        text.to_uppercase()
    } else {
        text
    }
}

fn exponent_text(value: f64, precision: usize, alternate: bool) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let point = if alternate && precision == 0 { "." } else { "" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{point}e{sign}{:02}", exponent.abs())
}

fn general_text(value: f64, precision: usize, alternate: bool) -> String {
    let scientific = format!("{value:.*e}", precision - 1);
    let exponent: i32 = scientific.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let is_plain = (-4..precision as i32).contains(&exponent);
    let text = if is_plain {
        let places = (precision as i32 - 1 - exponent).max(0) as usize;
        format!("{value:.places$}")
    } else {
        exponent_text(value, precision - 1, false)
    };
    if alternate {
        return text;
    }
    let (digits, exponent) = match text.split_once('e') {
        Some((digits, exponent)) => (digits, format!("e{exponent}")),
        None => (text.as_str(), String::new()),
    };
    let digits = match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    };
    format!("{digits}{exponent}")
}
