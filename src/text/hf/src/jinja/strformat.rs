//! str.format and the format specifications of numbers and strings.

use std::sync::Arc;

use num_bigint::BigInt;
use num_traits::Signed;

use super::attr;
use super::call::Args;
use super::error::{charge_read, charge_work, fail, Res};
use super::escape::escape;
use super::ops::{self, Number};
use super::percent::{ascii, float_text, sign_text};
use super::repr;
use super::value::{Text, Value};

const MAX_FIELD: usize = 1 << 20;

/// How fields without a name are counted.
struct Fields<'a> {
    args: &'a Args,
    next: usize,
    is_numbered: bool,
}

/// `format.format(*args.positional, **args.keywords)`
pub fn format(format: &Text, args: &Args) -> Res<Value> {
    charge_work(format.text.len())?;
    let mut fields = Fields { args, next: 0, is_numbered: false };
    let text = expand(&format.text, &mut fields, 0, format.safe)?;
    Ok(Value::str_like(text, format))
}

fn expand(format: &str, fields: &mut Fields, level: u32, safe: bool) -> Res<String> {
    if level > 2 {
        return fail("Max string recursion exceeded");
    }
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        if brace == "}" {
            return fail("Single '}' encountered in format string");
        }
        let end = field_end(rest)?;
        let text = field(&rest[..end], fields, level, safe)?;
        charge_work(text.len() + out.len() / 64)?;
        out.push_str(&text);
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

/// The '}' that closes a field.
fn field_end(text: &str) -> Res<usize> {
    let mut level = 1;
    for (i, c) in text.char_indices() {
        level += i32::from(c == '{') - i32::from(c == '}');
        if level == 0 {
            return Ok(i);
        }
    }
    fail(if text.is_empty() {
        "Single '{' encountered in format string"
    } else {
        "expected '}' before end of string"
    })
}

fn field(text: &str, fields: &mut Fields, level: u32, safe: bool) -> Res<String> {
    let mut in_brackets = false;
    let name_end = text
        .char_indices()
        .find(|(_, c)| {
            in_brackets = (in_brackets || *c == '[') && *c != ']';
            !in_brackets && matches!(c, ':' | '!')
        })
        .map_or(text.len(), |(i, _)| i);
    let (name, mut rest) = text.split_at(name_end);
    let mut conversion = None;
    if let Some(after) = rest.strip_prefix('!') {
        conversion = after.chars().next();
        rest = &after[conversion.map_or(0, char::len_utf8)..];
        if conversion.is_none() || !(rest.is_empty() || rest.starts_with(':')) {
            return fail("expected ':' after conversion specifier");
        }
    }
    let value = fields.value(name)?;
    let spec = expand(rest.strip_prefix(':').unwrap_or(""), fields, level + 1, false)?;
    let value = match conversion {
        None => value,
        Some('s') => Value::str(repr::str(&value)?),
        Some('r') => Value::str(repr::repr(&value)?),
        Some('a') => Value::str(ascii(&repr::repr(&value)?)?),
        Some(other) => return fail(format!("Unknown conversion specifier {other}")),
    };
    let text = format_value(&value, &spec)?;
    if safe && !matches!(&value, Value::Str(text) if text.safe) {
        return escape(&text);
    }
    Ok(text)
}

impl Fields<'_> {
    fn value(&mut self, name: &str) -> Res<Value> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(first_end);
        let mut value = if first.is_empty() || first.bytes().all(|b| b.is_ascii_digit()) {
            let at = self.place(first)?;
            match self.args.positional.get(at) {
                Some(value) => value.clone(),
                None => {
                    return fail(format!(
                        "Replacement index {at} out of range for positional args tuple"
                    ))
                }
            }
        } else {
            let keywords = &self.args.keywords;
            charge_read(keywords.len().saturating_mul(size_of::<(Arc<str>, Value)>()))?;
            match keywords.iter().find(|(key, _)| &**key == first) {
                Some((_, value)) => value.clone(),
                None => return fail(format!("KeyError: '{first}'")),
            }
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                value = attr::get_attr(&value, &after[..end])?;
                rest = &after[end..];
            } else {
                let Some(end) = rest.find(']') else {
                    return fail("Missing ']' in format string");
                };
                let key = &rest[1..end];
                let key = match key.parse::<i64>() {
                    Ok(number) if !key.starts_with('-') => Value::Int(number),
                    _ => Value::str(key),
                };
                value = attr::get_item(&value, &key)?;
                rest = &rest[end + 1..];
            }
        }
        Ok(value)
    }

    fn place(&mut self, digits: &str) -> Res<usize> {
        if digits.is_empty() {
            if self.is_numbered {
                return fail("cannot switch from manual field specification to automatic");
            }
            self.next += 1;
            return Ok(self.next - 1);
        }
        if self.next > 0 {
            return fail("cannot switch from automatic field numbering to manual");
        }
        self.is_numbered = true;
        Ok(digits.parse().unwrap_or(usize::MAX))
    }
}

/// [[fill]align][sign][z][#][0][width][grouping][.precision][type]
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    no_negative_zero: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn read_count(chars: &mut std::iter::Peekable<std::str::Chars>) -> Res<Option<usize>> {
    let mut count: Option<usize> = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        count = Some(count.unwrap_or(0).saturating_mul(10).saturating_add(digit as usize));
        chars.next();
    }
    if count.is_some_and(|c| c > MAX_FIELD) {
        return fail(format!("a width or precision above {MAX_FIELD}"));
    }
    Ok(count)
}

fn parse(text: &str) -> Res<Spec> {
    let mut spec = Spec::default();
    let is_align = |c: char| matches!(c, '<' | '>' | '=' | '^');
    let all: Vec<char> = text.chars().take(2).collect();
    let mut chars = text.chars().peekable();
    if all.len() == 2 && is_align(all[1]) {
        (spec.fill, spec.align) = (chars.next(), chars.next());
    } else if all.first().is_some_and(|c| is_align(*c)) {
        spec.align = chars.next();
    }
    spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
    spec.no_negative_zero = chars.next_if_eq(&'z').is_some();
    spec.alternate = chars.next_if_eq(&'#').is_some();
    spec.zero = chars.next_if_eq(&'0').is_some();
    spec.width = read_count(&mut chars)?.unwrap_or(0);
    spec.grouping = chars.next_if(|c| matches!(c, ',' | '_'));
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = read_count(&mut chars)?;
        if spec.precision.is_none() {
            return fail("Format specifier missing precision");
        }
    }
    spec.kind = chars.next();
    if chars.next().is_some() {
        return fail("Invalid format specifier");
    }
    Ok(spec)
}

/// format(value, spec)
pub fn format_value(value: &Value, spec_text: &str) -> Res<String> {
    if spec_text.is_empty() {
        return repr::str(value);
    }
    let spec = parse(spec_text)?;
    match value {
        Value::Str(text) => format_text(&text.text, &spec),
        Value::Undefined(_) => fail("unsupported format string passed to Undefined.__format__"),
        _ => match ops::number(value) {
            Some(number) => format_number(number, &spec, value),
            None => fail(format!(
                "unsupported format string passed to {}.__format__",
                value.type_name()
            )),
        },
    }
}

fn format_text(text: &str, spec: &Spec) -> Res<String> {
    if spec.kind.is_some_and(|kind| kind != 's') {
        return fail(format!(
            "Unknown format code '{}' for object of type 'str'",
            spec.kind.unwrap_or('s')
        ));
    }
    if spec.sign.is_some() || spec.align == Some('=') || spec.alternate || spec.grouping.is_some() {
        return fail("a part of the format specifier is not allowed for strings");
    }
    charge_work(text.len())?;
    let cut: String = match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text.to_string(),
    };
    pad("", &cut, spec, '<', if spec.zero { '0' } else { ' ' })
}

fn format_number(number: Number, spec: &Spec, value: &Value) -> Res<String> {
    let kind = spec.kind.unwrap_or(match (&number, value) {
        (_, Value::Bool(_)) if spec.precision.is_none() && spec.sign.is_none() => 'd',
        (Number::Int(_), _) => 'd',
        _ => '\0',
    });
    if spec.no_negative_zero && matches!(kind, 'd' | 'n' | 'b' | 'o' | 'x' | 'X' | 'c') {
        return fail(
            "Negative zero coercion (z) not allowed in format specifier with integer type",
        );
    }
    match (number, kind) {
        (Number::Int(number), 'd' | 'n' | 'b' | 'o' | 'x' | 'X') => {
            if spec.precision.is_some() {
                return fail("Precision not allowed in integer format specifier");
            }
            format_integer(&number, spec, kind)
        }
        (Number::Int(number), 'c') => {
            let c = u32::try_from(&number).ok().and_then(char::from_u32);
            match c {
                Some(c) => pad("", &c.to_string(), spec, '<', ' '),
                None => fail("%c arg not in range(0x110000)"),
            }
        }
        (Number::Int(number), 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
            format_float(ops::float_of(&number)?, spec, kind)
        }
        (Number::Float(number), '\0' | 'n' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => {
            format_float(number, spec, kind)
        }
        (_, other) => fail(format!(
            "Unknown format code '{other}' for object of type '{}'",
            value.type_name()
        )),
    }
}

fn format_integer(number: &BigInt, spec: &Spec, kind: char) -> Res<String> {
    repr::big(number)?;
    let (radix, prefix) = match kind {
        'b' => (2, "0b"),
        'o' => (8, "0o"),
        'x' => (16, "0x"),
        'X' => (16, "0X"),
        _ => (10, ""),
    };
    let mut digits = number.abs().to_str_radix(radix);
    if kind == 'X' {
        digits = digits.to_uppercase();
    }
    let mut sign = sign_of(number.is_negative(), spec);
    if spec.alternate {
        sign.push_str(prefix);
    }
    let group = if radix == 10 { 3 } else { 4 };
    finish(&sign, &digits, "", spec, group)
}

fn format_float(number: f64, spec: &Spec, kind: char) -> Res<String> {
    let is_negative = number.is_sign_negative() && !number.is_nan();
    let size = number.abs();
    let mut text = match (kind, spec.precision) {
        ('%', precision) => float_text(size * 100.0, 'f', precision.unwrap_or(6), spec.alternate),
        ('\0', None) => repr::float(size),
        ('\0', Some(precision)) => {
            let text = float_text(size, 'g', precision, spec.alternate);
            // Like str: at least one digit behind the point, unless an exponent is written.
            if text.contains(['.', 'e', 'n']) {
                text
            } else {
                text + ".0"
            }
        }
        ('n', precision) => float_text(size, 'g', precision.unwrap_or(6), spec.alternate),
        (kind, precision) => float_text(size, kind, precision.unwrap_or(6), spec.alternate),
    };
    if kind == '%' {
        text.push('%');
    }
    let is_zero = !text.contains(|c: char| matches!(c, '1'..='9' | 'i' | 'n'));
    let sign = sign_of(is_negative && !(spec.no_negative_zero && is_zero), spec);
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(whole);
    if digits.is_empty() {
        return pad(&sign, rest, spec, '>', ' ');
    }
    finish(&sign, digits, rest, spec, 3)
}

fn sign_of(is_negative: bool, spec: &Spec) -> String {
    sign_text(is_negative, spec.sign == Some('+'), spec.sign == Some(' ')).to_string()
}

/// Groups the digits and fills up to the width; zeros that fill are grouped too.
fn finish(sign: &str, digits: &str, rest: &str, spec: &Spec, group: usize) -> Res<String> {
    let fills_zeros =
        spec.zero && spec.align.is_none() || (spec.fill == Some('0') && spec.align == Some('='));
    let mut digits = digits.to_string();
    if let Some(separator) = spec.grouping {
        let fixed = sign.len() + rest.chars().count();
        loop {
            let grouped = grouped(&digits, separator, group);
            if !fills_zeros || grouped.len() + fixed >= spec.width {
                digits = grouped;
                break;
            }
            digits.insert(0, '0');
            charge_work(digits.len())?;
        }
    }
    let body = format!("{digits}{rest}");
    pad(sign, &body, spec, '>', if spec.zero { '0' } else { ' ' })
}

fn grouped(digits: &str, separator: char, group: usize) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % group == 0 {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

fn pad(sign: &str, body: &str, spec: &Spec, align: char, fill: char) -> Res<String> {
    let missing = spec.width.saturating_sub(sign.chars().count() + body.chars().count());
    charge_work(missing.saturating_mul(4))?;
    let fill = spec.fill.unwrap_or(fill);
    let is_number = align == '>';
    let align = spec.align.unwrap_or(if spec.zero && is_number { '=' } else { align });
    let run = |n: usize| fill.to_string().repeat(n);
    Ok(match align {
        '<' => format!("{sign}{body}{}", run(missing)),
        '^' => format!("{}{sign}{body}{}", run(missing / 2), run(missing - missing / 2)),
        '=' => format!("{sign}{}{body}", run(missing)),
        _ => format!("{}{sign}{body}", run(missing)),
    })
}
