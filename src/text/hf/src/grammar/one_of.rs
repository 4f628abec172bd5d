//! Branches of `oneOf` that exclude each other by the value of one member, as tagged unions do.
//! llguidance does not look through `$ref` for that, so they become `anyOf`, which says the same.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Looked through in a row at most, of references that stand alone.
const MAX_REFS: usize = 16;
/// Names that may be looked at for one schema: some 20 ms. Many lists may refer to one branch of
/// many names, so their product has no other bound. A `oneOf` beyond it stays.
pub const MAX_LOOKS: usize = 1 << 22;

/// Rewrites each such `oneOf` in `schema`, a checked one whose references are in `definitions`.
/// `looks`: the names that may still be looked at.
pub fn rewrite(schema: &mut Value, definitions: &Map<String, Value>, looks: &mut usize) {
    match schema {
        Value::Object(members) => {
            let branches = members.get("oneOf").and_then(Value::as_array);
            let is_tagged = branches.is_some_and(|list| exclude_by_a_tag(list, definitions, looks));
            if is_tagged && !members.contains_key("anyOf") {
                if let Some(list) = members.remove("oneOf") {
                    members.insert("anyOf".to_string(), list);
                }
            }
            for (key, value) in members.iter_mut() {
                if !matches!(key.as_str(), "const" | "enum" | "required") {
                    rewrite(value, definitions, looks);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, definitions, looks)),
        _ => {}
    }
}

/// Whether all branches are objects that must have one member whose texts differ from branch to
/// branch.
fn exclude_by_a_tag(
    branches: &[Value],
    definitions: &Map<String, Value>,
    looks: &mut usize,
) -> bool {
    if *looks == 0 {
        return false;
    }
    let Some(objects) =
        branches.iter().map(|b| resolved(b, definitions)).collect::<Option<Vec<_>>>()
    else {
        return false;
    };
    let names = objects.first().and_then(|first| first.get("required")).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).any(|name| {
        let mut seen = HashSet::new();
        objects.iter().all(|object| {
            tags(object, name, looks)
                .is_some_and(|texts| texts.into_iter().all(|text| seen.insert(text)))
        })
    })
}

/// The schema that a branch is, through references that stand alone.
fn resolved<'a>(
    mut branch: &'a Value,
    definitions: &'a Map<String, Value>,
) -> Option<&'a Map<String, Value>> {
    for _ in 0..MAX_REFS {
        let members = branch.as_object()?;
        match members.get("$ref") {
            None => return Some(members),
            Some(_) if members.len() > 1 => return None,
            Some(target) => {
                branch = definitions.get(target.as_str()?.strip_prefix("#/$defs/")?)?;
            }
        }
    }
    None
}

/// The different texts that the member `name` of an object may have; none = it need not be there,
/// or may be something else, or nobody may look any more.
fn tags<'a>(
    object: &'a Map<String, Value>,
    name: &str,
    looks: &mut usize,
) -> Option<HashSet<&'a str>> {
    spend(looks, 1)?;
    if object.get("type")? != "object" {
        return None;
    }
    let member = object.get("properties")?.get(name)?;
    let texts: HashSet<&str> = match (member.get("const"), member.get("enum")) {
        (Some(text), _) => HashSet::from([text.as_str()?]),
        (None, texts) => {
            let texts = texts?.as_array()?;
            spend(looks, texts.len())?;
            texts.iter().map(Value::as_str).collect::<Option<_>>()?
        }
    };
    let required = object.get("required")?.as_array()?;
    spend(looks, required.len())?;
    required.iter().any(|known| known == name).then_some(texts)
}

/// Takes `count` looks; none = fewer were left, and none is left now.
fn spend(looks: &mut usize, count: usize) -> Option<()> {
    let left = looks.checked_sub(count);
    *looks = left.unwrap_or(0);
    left.map(|_| ())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::rewrite;

    /// Many lists may refer to one branch of many names.
    #[test]
    fn lists_beyond_the_limit_of_looks_stay_one_of() {
        let names: Vec<String> = (0..100).map(|i| format!("m{i}")).collect();
        let branch = |tag: &str| {
            let members = json!({"m99": {"const": tag}});
            json!({"type": "object", "required": names, "properties": members})
        };
        let definitions = json!({"a": branch("a"), "b": branch("b")});
        let list = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
        let mut schema = json!({"allOf": [list.clone(), list]});
        let mut looks = 400; // a list takes 301
        rewrite(&mut schema, definitions.as_object().unwrap(), &mut looks);
        assert!(schema.pointer("/allOf/0/anyOf").is_some());
        assert!(schema.pointer("/allOf/1/oneOf").is_some());
        assert_eq!(looks, 0);
    }
}
