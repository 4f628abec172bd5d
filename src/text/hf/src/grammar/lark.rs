//! Grammars in Lark's form: what is refused before llguidance reads one, the blanks of schemas in
//! one, and choices as one.

use serde_json::{Map, Value};

use super::compile::{self, Limits};
use super::json_text;
use super::schema::{self, check_patterns, Strictness};
use crate::Failure;

/// The grammar with bounded blanks in its schemas. Refuses what would let an answer hold control
/// tokens, another program's form of grammar, and schemas that are refused elsewhere: llguidance
/// reads those without our limits.
pub fn with_bounds(text: &str, limits: &Limits) -> Result<String, Failure> {
    if text.trim().is_empty() {
        return Err(Failure::invalid("the grammar is empty"));
    }
    if let Some(line) = text.lines().position(|line| line.contains("::=")) {
        return Err(Failure::invalid(format!(
            "the grammar: line {}: '::=' begins a rule of GBNF, and the first rule is one of Lark",
            line + 1
        )));
    }
    let mut bounded = String::with_capacity(text.len());
    let (mut copied, mut num_patterns) = (0, 0);
    let mut rest = text.char_indices().peekable();
    while let Some((at, c)) = rest.next() {
        let line = || text[..at].matches('\n').count() + 1;
        match c {
            '"' | '/' => skip_literal(c, &mut rest),
            '#' => skip_line(&mut rest),
            '<' => {
                return Err(Failure::invalid(format!(
                    "the grammar: line {}: a token by its name or number (<...>) is not taken; \
                     write its text",
                    line()
                )));
            }
            '%' if text[at..].starts_with("%json") => {
                let begin = at + "%json".len();
                let read = read_schema(text, begin, limits).and_then(|(end, schema, patterns)| {
                    num_patterns += patterns;
                    check_patterns(num_patterns, "#").map(|()| (end, schema))
                });
                let (end, schema) = read.map_err(|f| {
                    let place = format!("the grammar: line {}: the schema", line());
                    Failure::new(f.code, format!("{place}: {}", f.message))
                })?;
                bounded.push_str(&text[copied..begin]);
                bounded.push_str(&in_place_of(&text[begin..end], schema));
                copied = end;
                while rest.next_if(|(at, _)| *at < end).is_some() {}
            }
            '%' if text[at..].starts_with("%llguidance") => {
                return Err(Failure::invalid(format!(
                    "the grammar: line {}: %llguidance is not taken",
                    line()
                )));
            }
            _ => {}
        }
    }
    bounded.push_str(&text[copied..]);
    Ok(bounded)
}

/// Checks the schema that begins at `from`, after blanks. Returns where it ends, its enforced form
/// and how many patterns it has.
fn read_schema(text: &str, from: usize, limits: &Limits) -> Result<(usize, Value, usize), Failure> {
    let mut reader = serde_json::Deserializer::from_str(&text[from..]).into_iter::<Value>();
    if let Some(read) = reader.next() {
        read.map_err(|e| Failure::invalid(e.to_string()))?;
    }
    let end = from + reader.byte_offset();
    let source = json_text::parse("its text", &text[from..end], limits.max_values)?;
    let checked = schema::check_open(&source, Strictness::Strict, limits)?;
    let schema = with_own_options(checked.schema, source.get("x-guidance"));
    Ok((end, schema, checked.num_patterns))
}

fn with_own_options(mut schema: Value, own: Option<&Value>) -> Value {
    if let (Value::Object(members), Some(own)) = (&mut schema, own) {
        members.insert("x-guidance".to_string(), own.clone());
    }
    schema
}

/// The schema with bounded blanks, in as many lines as `written` has: later errors of llguidance
/// have the client's lines. What the schema itself says of its blanks stays.
fn in_place_of(written: &str, schema: Value) -> String {
    let mut members = match schema {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        _ => return written.to_string(),
    };
    let own = members.shift_remove("x-guidance");
    let Value::Object(mut options) = own.unwrap_or_else(|| Value::Object(Map::new())) else {
        return written.to_string();
    };
    if compile::names_need_one_spelling(&members) {
        options.entry(compile::ESCAPES.0).or_insert_with(|| compile::ESCAPES.1.into());
    }
    let has_blanks = options.get("whitespace_flexible") != Some(&Value::Bool(false));
    if has_blanks {
        for (name, pattern) in compile::BLANKS {
            options.entry(name).or_insert_with(|| pattern.into());
        }
    }
    members.insert("x-guidance".to_string(), Value::Object(options));
    let lines = "\n".repeat(written.matches('\n').count());
    let json = Value::Object(members).to_string();
    format!(" {{{lines}{}", &json[1..])
}

type Chars<'a> = std::iter::Peekable<std::str::CharIndices<'a>>;

fn skip_line(rest: &mut Chars) {
    for (_, c) in rest.by_ref() {
        if c == '\n' {
            return;
        }
    }
}

/// Behind the end of a string or of a regular expression, or of a comment that begins with `//`.
fn skip_literal(quote: char, rest: &mut Chars) {
    if quote == '/' && rest.peek().is_some_and(|(_, c)| *c == '/') {
        return skip_line(rest);
    }
    while let Some((_, c)) = rest.next() {
        match c {
            '\\' => {
                rest.next();
            }
            // A string ends with its line: a stray quote hides nothing behind it. A regular
            // expression may have several.
            '\n' if quote == '"' => return,
            c if c == quote => return,
            _ => {}
        }
    }
}

/// A grammar of the texts in a JSON array.
pub fn of_choice(text: &str, limits: &Limits) -> Result<String, Failure> {
    let value = json_text::parse("the choice", text, limits.max_values)?;
    let texts = value.as_array().filter(|texts| !texts.is_empty());
    let Some(texts) = texts else {
        return Err(Failure::invalid("the choice must be a list of one text or more"));
    };
    if texts.len() > limits.max_enum_values {
        return Err(Failure::limit(format!(
            "the choice has {} texts, more than {}",
            texts.len(),
            limits.max_enum_values
        )));
    }
    let mut options = Vec::with_capacity(texts.len());
    for (i, option) in texts.iter().enumerate() {
        match option {
            Value::String(text) if text.is_empty() => {
                return Err(Failure::invalid(format!("the choice: text {i} is empty")));
            }
            Value::String(_) => options.push(option.to_string()),
            _ => return Err(Failure::invalid(format!("the choice: element {i} is not a text"))),
        }
    }
    Ok(format!("start: CHOICE\nCHOICE: {}\n", options.join(" | ")))
}
