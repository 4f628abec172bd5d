//! The `tojson` filter as chat templates expect it: Python's json.dumps(ensure_ascii=False), so
//! ", " and ": " between items and no HTML escapes (minijinja's own filter has both wrong for
//! prompts).

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Writes JSON with the layout of Python's json module.
struct PythonFormatter {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    level: usize,
    has_item: bool,
}

impl PythonFormatter {
    fn new_line<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        for _ in 0..indent.saturating_mul(self.level) {
            writer.write_all(b" ")?;
        }
        Ok(())
    }

    fn begin<W: ?Sized + Write>(&mut self, writer: &mut W, open: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_item = false;
        writer.write_all(open)
    }

    fn item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item_separator.as_bytes())?;
        }
        self.new_line(writer)
    }

    fn end<W: ?Sized + Write>(&mut self, writer: &mut W, close: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_item {
            self.new_line(writer)?;
        }
        writer.write_all(close)
    }
}

impl Formatter for PythonFormatter {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"[")
    }
    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"]")
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }
    fn end_array_value<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_item = true;
        Ok(())
    }
    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.begin(writer, b"{")
    }
    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.end(writer, b"}")
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.item(w, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key_separator.as_bytes())
    }
    fn end_object_value<W: ?Sized + Write>(&mut self, _writer: &mut W) -> io::Result<()> {
        self.has_item = true;
        Ok(())
    }
    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.ensure_ascii || fragment.is_ascii() {
            return writer.write_all(fragment.as_bytes());
        }
        for c in fragment.chars() {
            if c.is_ascii() {
                write!(writer, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// A finite float as Python's repr writes it: shortest digits, an exponent of at least two digits
/// outside [1e-4, 1e16).
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// tojson(indent=None, ensure_ascii=False, separators=None, sort_keys=False)
pub fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match separators.as_deref() {
        None => (default_item.to_string(), ": ".to_string()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("tojson: separators has {} items, not 2", other.len()),
            ))
        }
    };
    let formatter = PythonFormatter {
        indent,
        item_separator,
        key_separator,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        level: 0,
        has_item: false,
    };
    let mut out = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    let written = if sort_keys.unwrap_or(false) {
        serde_json::to_value(value).and_then(|mut sorted| {
            sorted.sort_all_objects();
            sorted.serialize(&mut serializer)
        })
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, format!("tojson: {e}")))?;
    String::from_utf8(out)
        .map(Value::from)
        .map_err(|_| Error::new(ErrorKind::BadSerialization, "tojson: not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumps(json: &str, template: &str) -> String {
        let mut env = minijinja::Environment::new();
        env.add_filter("tojson", tojson);
        let x: serde_json::Value = serde_json::from_str(json).unwrap();
        env.render_str(template, minijinja::context!(x => x)).unwrap()
    }

    // Expected values: json.dumps(json.loads(...), ensure_ascii=False) of CPython 3.11.
    #[test]
    fn layout_is_pythons() {
        let source = r#"{"b":[1,2.0,{"c":null}],"a":"<é&'\"\n\u0001>","e":[],"f":{}}"#;
        assert_eq!(
            dumps(source, "{{ x|tojson }}"),
            r#"{"b": [1, 2.0, {"c": null}], "a": "<é&'\"\n\u0001>", "e": [], "f": {}}"#
        );
        assert_eq!(
            dumps(r#"{"b":[1,{"c":true}],"e":[]}"#, "{{ x|tojson(indent=2) }}"),
            "{\n  \"b\": [\n    1,\n    {\n      \"c\": true\n    }\n  ],\n  \"e\": []\n}"
        );
        assert_eq!(
            dumps(r#"{"b":1,"a":{"d":1,"c":2}}"#, "{{ x|tojson(sort_keys=true) }}"),
            r#"{"a": {"c": 2, "d": 1}, "b": 1}"#
        );
        assert_eq!(
            dumps(r#"{"b":[1,2]}"#, "{{ x|tojson(separators=(',', ':')) }}"),
            r#"{"b":[1,2]}"#
        );
        assert_eq!(
            dumps(r#"["é😀"]"#, "{{ x|tojson(ensure_ascii=true) }}"),
            "[\"\\u00e9\\ud83d\\ude00\"]"
        );
    }

    #[test]
    fn floats_are_pythons() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123456789012345.0, "123456789012345.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }
}
