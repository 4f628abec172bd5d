//! Texts of the kinds that an API takes to compiled grammars, within limits on size and time.

use std::fmt::Write;
use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::TokenParser;
use serde_json::{json, Map, Value};

use super::parts;
use super::regex::Dialect;
use super::schema::{self, Blanks, Checked, Strictness};
use super::state::Grammar;
use super::structural::Content;
use super::vocabulary::Vocabulary;
use super::{gbnf, json_text, lark, one_of, regex, structural};
use crate::budget::{self, Bounds};
use crate::{Code, Failure};

/// The kind of a text; the numbers are those of baton_grammar.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any JSON object; the text is empty.
    JsonObject,
    /// A JSON Schema; a keyword that cannot be enforced is refused.
    SchemaStrict,
    /// A JSON Schema; a keyword that cannot be enforced is dropped and listed.
    SchemaLoose,
    /// A regular expression for the whole answer.
    Regex,
    /// A JSON array of texts, one of which is the answer.
    Choice,
    /// A grammar in llguidance's form of Lark, or in GBNF.
    Lark,
    /// Text with tags in it whose contents follow schemas, in vLLM's form or in xgrammar's.
    StructuralTag,
}

/// Limits of one compilation.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_text_bytes: usize,
    /// JSON values in a schema, the strings and numbers of enums included.
    pub max_values: u64,
    /// Values of all enums and texts of a choice.
    pub max_enum_values: usize,
    /// Different targets of $ref.
    pub max_refs: usize,
    /// Nesting of schemas.
    pub max_depth: usize,
    pub bounds: Bounds,
}

/// Whitespace between JSON tokens: nothing, or a line break with an indentation. Without a bound
/// small models fill their answers with blanks. One space may follow ':' and ','; none stands
/// before them.
pub const BLANKS: [(&str, &str); 3] = [
    ("whitespace_pattern", r"\r?\n(\x20{0,40}|\t{0,10})"),
    ("key_separator", r":\x20?"),
    ("item_separator", r",\x20?"),
];
/// The escapes that leave each name one spelling: none of a character that can stand as it is.
pub const ESCAPES: (&str, &str) = ("json_allowed_escapes", "nrbtf\\\"");
/// Messages are cut here: an error is one readable line.
const MAX_MESSAGE_BYTES: usize = 1000;
/// Compilations that may be spent on finding the place of an error in a schema.
const MAX_PROBES: usize = 100;
/// Compilations that may be spent on finding the bad schema of a structural tag. One of 1,024 takes
/// at most 11: nine of several schemas, and two of one.
const MAX_TAG_PROBES: usize = 24;

pub fn compile(
    vocabulary: &Arc<Vocabulary>,
    kind: Kind,
    text: &str,
    limits: &Limits,
) -> Result<Grammar, Failure> {
    if text.len() > limits.max_text_bytes {
        return Err(Failure::limit(format!(
            "{} has {} bytes, more than {}",
            name_of(kind),
            text.len(),
            limits.max_text_bytes
        )));
    }
    let (vocabulary, text, limits) = (Arc::clone(vocabulary), text.to_owned(), *limits);
    budget::run_for(&budget::GRAMMARS, &limits.bounds, move || {
        let (parser, ignored) = match kind {
            Kind::SchemaStrict => compile_schema(&vocabulary, &text, Strictness::Strict, &limits)?,
            Kind::SchemaLoose => compile_schema(&vocabulary, &text, Strictness::Loose, &limits)?,
            Kind::StructuralTag => compile_tag(&vocabulary, &text, &limits)?,
            _ => (compile_plain(&vocabulary, kind, &text, &limits)?, Vec::new()),
        };
        Ok(Grammar::new(vocabulary, parser, ignored))
    })
    .map_err(|failure| Failure::new(failure.code, one_line(&failure.message)))
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::JsonObject | Kind::SchemaStrict | Kind::SchemaLoose => "the schema",
        Kind::Regex => "the regular expression",
        Kind::Choice => "the choice",
        Kind::Lark => "the grammar",
        Kind::StructuralTag => "the structural tag",
    }
}

/// The first line of a message, cut to MAX_MESSAGE_BYTES.
fn one_line(message: &str) -> String {
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("<backtrace>") && !line.starts_with("<non-verbose"))
        // The names of definitions there are our own.
        .filter(|line| !line.is_empty() && !line.starts_with("while processing"))
        .collect();
    let mut line = lines.join("; ");
    if line.len() > MAX_MESSAGE_BYTES {
        let cut = (0..=MAX_MESSAGE_BYTES).rev().find(|i| line.is_char_boundary(*i));
        line.truncate(cut.unwrap_or(0));
        line.push_str("...");
    }
    line
}

fn parser_of(vocabulary: &Vocabulary, grammar: GrammarWithLexer) -> Result<TokenParser, String> {
    vocabulary
        .factory
        .create_parser(TopLevelGrammar::from_grammar(grammar))
        .map_err(|e| one_line(&e.to_string()))
}

/// The schema with our options for llguidance in it.
pub fn with_options(schema: Value, strictness: Strictness, blanks: Blanks) -> Value {
    let mut members = match schema {
        Value::Object(members) => members,
        Value::Bool(true) => Map::new(),
        other => return other,
    };
    let mut options = json!({
        "whitespace_flexible": blanks == Blanks::Bounded,
        "lenient": strictness == Strictness::Loose,
        "json_allow_general_unicode_escapes": true,
    });
    if blanks == Blanks::Bounded {
        for (name, pattern) in BLANKS {
            options[name] = pattern.into();
        }
    }
    if names_need_one_spelling(&members) && !members.iter().any(holds_control) {
        options[ESCAPES.0] = ESCAPES.1.into();
    }
    members.insert("x-guidance".to_string(), options);
    Value::Object(members)
}

/// Whether a constant has a control character that only `\u` can spell.
fn holds_control((key, value): (&String, &Value)) -> bool {
    let is_constant = matches!(key.as_str(), "const" | "enum");
    match value {
        Value::String(text) => {
            let is_short = |c: char| matches!(c, '\u{8}' | '\u{c}' | '\n' | '\r' | '\t');
            is_constant && text.chars().any(|c| c.is_ascii_control() && !is_short(c))
        }
        Value::Array(items) if is_constant => items.iter().any(|item| holds_control((key, item))),
        Value::Array(schemas) => {
            let mut members = schemas.iter().filter_map(Value::as_object).flatten();
            members.any(holds_control)
        }
        Value::Object(members) if is_constant => {
            members.values().any(|value| holds_control((key, value)))
        }
        Value::Object(members) => members.iter().any(holds_control),
        _ => false,
    }
}

/// Whether an object in the schema may have other members beside those that it declares by their
/// names or patterns. `"\u0061"` would be another name than `"a"` there, and the same to a reader.
pub fn names_need_one_spelling(members: &Map<String, Value>) -> bool {
    let is_empty = |key: &str| match members.get(key) {
        Some(Value::Object(all)) => all.is_empty(),
        Some(Value::Array(all)) => all.is_empty(),
        _ => true,
    };
    let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
    let has_names = !is_empty("properties") || !is_empty("required");
    if !is_empty("patternProperties") || (has_names && !is_closed) {
        return true;
    }
    let of = |schema: &Value| schema.as_object().is_some_and(names_need_one_spelling);
    members.iter().any(|(key, value)| match (key.as_str(), value) {
        ("const" | "enum", _) => false,
        ("properties" | "$defs", Value::Object(all)) => all.values().any(of),
        (_, Value::Array(schemas)) => schemas.iter().any(of),
        (_, schema) => of(schema),
    })
}

fn schema_parser(
    vocabulary: &Vocabulary,
    schema: Value,
    strictness: Strictness,
    blanks: Blanks,
) -> Result<TokenParser, String> {
    let schema = with_options(schema, strictness, blanks);
    parser_of(vocabulary, GrammarWithLexer::from_json_schema(schema))
}

fn compile_plain(
    vocabulary: &Vocabulary,
    kind: Kind,
    text: &str,
    limits: &Limits,
) -> Result<TokenParser, Failure> {
    let grammar = match kind {
        Kind::Regex if text.is_empty() => {
            return Err(Failure::invalid("the regular expression is empty"));
        }
        Kind::Regex => {
            // Its own rewrite for `pattern` makes \d and \w ASCII; from_regex would not.
            let ascii = regex::rewritten(text, Dialect::Ascii)
                .map_err(|message| Failure::invalid(format!("{}: {message}", name_of(kind))))?;
            GrammarWithLexer::from_lark(format!("start: /{ascii}/"))
        }
        Kind::Choice => GrammarWithLexer::from_lark(lark::of_choice(text, limits)?),
        Kind::Lark if gbnf::is_gbnf(text) => GrammarWithLexer::from_lark(gbnf::to_lark(text)?),
        Kind::Lark => GrammarWithLexer::from_lark(lark::with_bounds(text, limits)?),
        _ => {
            let any = json!({"type": "object"});
            let any = with_options(any, Strictness::Strict, Blanks::Bounded);
            GrammarWithLexer::from_json_schema(any)
        }
    };
    parser_of(vocabulary, grammar).map_err(|message| coded(name_of(kind), &message))
}

/// A failure of llguidance: a limit when the message speaks of one, and internal when llguidance
/// caught a panic of its own.
pub fn coded(place: &str, message: &str) -> Failure {
    const LIMITS: [&str; 6] = ["fuel", "too large", "too big", "too many", "stack level", "limit"];
    let message_here = if message.starts_with("oneOf constraints are not supported") {
        format!("{place}/oneOf: {}", one_of::OVERLAP)
    } else {
        format!("{place}: {message}")
    };
    if message.starts_with("panic: ") {
        Failure::new(Code::Internal, message_here)
    } else if LIMITS.iter().any(|word| message.contains(word)) {
        Failure::limit(message_here)
    } else {
        Failure::invalid(message_here)
    }
}

fn compile_schema(
    vocabulary: &Vocabulary,
    text: &str,
    strictness: Strictness,
    limits: &Limits,
) -> Result<(TokenParser, Vec<String>), Failure> {
    let source = json_text::parse("the schema", text, limits.max_values)?;
    let checked = schema::check(&source, strictness, limits)?;
    match schema_parser(vocabulary, checked.schema.clone(), strictness, checked.blanks) {
        Ok(mut parser) => {
            let loosened = loosened_places(vocabulary, &parser.grammar_warnings(), &checked);
            Ok((parser, checked.ignored.into_iter().chain(loosened).collect()))
        }
        Err(message) => {
            let (place, inner) = locate(vocabulary, &checked, strictness);
            Err(coded(&place, &inner.unwrap_or(message)))
        }
    }
}

fn compile_tag(
    vocabulary: &Vocabulary,
    text: &str,
    limits: &Limits,
) -> Result<(TokenParser, Vec<String>), Failure> {
    let made = structural::compile(text, limits)?;
    match parser_of(vocabulary, GrammarWithLexer::from_lark(made.lark)) {
        Ok(mut parser) => {
            let (warnings, mut ignored) = (parser.grammar_warnings(), made.ignored);
            for content in &made.schemas {
                let loosened = loosened_places(vocabulary, &warnings, content.whole());
                ignored.extend(loosened.iter().map(|at| at.replacen('#', &content.place, 1)));
            }
            Ok((parser, ignored))
        }
        Err(message) => {
            let mut probes = TagProbes::new(vocabulary);
            let of_a_schema = probes.first_failure(&made.schemas);
            Err(of_a_schema
                .or_else(|| probes.first_failure(&made.properties))
                .unwrap_or_else(|| coded(name_of(Kind::StructuralTag), &message)))
        }
    }
}

/// The search for the schema of a structural tag that fails by itself.
pub struct TagProbes<'a> {
    vocabulary: &'a Vocabulary,
    /// Compilations that it may still take.
    pub num_left: usize,
}

impl<'a> TagProbes<'a> {
    pub fn new(vocabulary: &'a Vocabulary) -> Self {
        Self { vocabulary, num_left: MAX_TAG_PROBES }
    }

    /// The failure of the first schema that fails by itself, and its place. Schemas of which none
    /// fails compile together too, so halves are looked at: all compilations for one bad schema
    /// have about as many schemas as the tag.
    pub fn first_failure(&mut self, schemas: &[Content]) -> Option<Failure> {
        match schemas {
            [] => None,
            [content] => self.take().then(|| schema_failure(self.vocabulary, content)).flatten(),
            _ => {
                let (left, right) = schemas.split_at(schemas.len() / 2);
                // Two schemas or more may also be too large together: then the search goes on.
                let looks_left = left.len() == 1 || self.fail_together(left);
                let found = if looks_left { self.first_failure(left) } else { None };
                found.or_else(|| self.first_failure(right))
            }
        }
    }

    fn fail_together(&mut self, schemas: &[Content]) -> bool {
        if !self.take() {
            return false;
        }
        let names: Vec<String> = (0..schemas.len()).map(|i| format!("s{i}")).collect();
        let mut lark = format!("start: {}\n", names.join(" | "));
        for (name, content) in names.iter().zip(schemas) {
            let Checked { schema, blanks, .. } = content.checked();
            let schema = with_options(schema, Strictness::Loose, blanks);
            let _ = writeln!(lark, "{name}: %json {schema}");
        }
        parser_of(self.vocabulary, GrammarWithLexer::from_lark(lark)).is_err()
    }

    fn take(&mut self) -> bool {
        let is_there = self.num_left > 0 && !budget::is_abandoned();
        self.num_left -= usize::from(is_there);
        is_there
    }
}

/// The failure of a schema of a tag, where it fails by itself.
fn schema_failure(vocabulary: &Vocabulary, content: &Content) -> Option<Failure> {
    let (checked, loose) = (content.checked(), Strictness::Loose);
    let message = schema_parser(vocabulary, checked.schema.clone(), loose, checked.blanks).err()?;
    let (inside, reason) = locate(vocabulary, &checked, loose);
    Some(coded(&inside.replacen('#', &content.place, 1), &reason.unwrap_or(message)))
}

/// The places of the keywords that llguidance took in a wider sense, by its warnings, which have no
/// place: a part with such a keyword fails by itself where it must be enforced.
fn loosened_places(vocabulary: &Vocabulary, warnings: &[String], checked: &Checked) -> Vec<String> {
    const ONE_OF: (&str, &str) = ("oneOf not fully supported", "oneOf constraints are not");
    const COUNTS: (&str, &str) =
        ("min/maxProperties only supported", "min/maxProperties only supported");
    let warns = |(warning, _): (&str, &str)| warnings.iter().any(|text| text.contains(warning));
    let (mut found, mut waiting) = (Vec::new(), vec![("#".to_string(), &checked.schema)]);
    let mut num_probes = 0;
    let is_silent = !warns(ONE_OF) && !warns(COUNTS);
    while let Some((place, part)) = waiting.pop().filter(|_| !is_silent && !budget::is_abandoned())
    {
        for key in ["oneOf", "minProperties", "maxProperties"] {
            let kind = if key == "oneOf" { ONE_OF } else { COUNTS };
            let Some(value) = part.get(key).filter(|_| warns(kind) && num_probes < MAX_PROBES)
            else {
                continue;
            };
            num_probes += 1;
            let probe = if key == "oneOf" { json!({ key: value }) } else { part.clone() };
            let failure = failure_of(vocabulary, &probe, checked, Strictness::Strict);
            if failure.is_some_and(|message| message.contains(kind.1)) {
                found.push(format!("{place}/{key}"));
            }
        }
        waiting.extend(parts::parts(part, &place, &checked.places));
    }
    found.sort();
    found.dedup();
    found
}

/// The message of a part of a schema that fails by itself.
fn failure_of(
    vocabulary: &Vocabulary,
    part: &Value,
    checked: &Checked,
    strictness: Strictness,
) -> Option<String> {
    // `false` and the like describe nothing on purpose: their parent says what is wrong.
    let mut members = part.as_object()?.clone();
    if let Some(definitions) = checked.schema.get("$defs") {
        members.insert("$defs".to_string(), definitions.clone());
    }
    schema_parser(vocabulary, Value::Object(members), strictness, checked.blanks).err()
}

/// The place of the deepest schema that fails by itself, and its message.
fn locate(
    vocabulary: &Vocabulary,
    checked: &Checked,
    strictness: Strictness,
) -> (String, Option<String>) {
    let (mut here, mut place, mut message) = (&checked.schema, "#".to_string(), None);
    let mut num_probes = 0;
    loop {
        let mut deeper = None;
        for (place, part) in parts::parts(here, &place, &checked.places) {
            num_probes += 1;
            if num_probes > MAX_PROBES || budget::is_abandoned() {
                break;
            }
            if let Some(reason) = failure_of(vocabulary, part, checked, strictness) {
                deeper = Some((place, part, reason));
                break;
            }
        }
        match deeper {
            Some((inner, part, reason)) => {
                (here, place, message) = (part, inner, Some(reason));
            }
            None => return (place, message),
        }
    }
}
