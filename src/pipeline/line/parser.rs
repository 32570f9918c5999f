//! Parsing the fields of a line while it arrives, with a limit on its inputs. Pure.

use super::{Fields, Input, InputPart, LineError, PIPELINES_MD, TaskList, Tasks};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// The maximum length of a path in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Parses the fields of a line, with at most `inputs_max` inputs and paths.
pub(super) fn fields<'de, R: serde_json::de::Read<'de>>(
    parser: &mut serde_json::Deserializer<R>,
    inputs_max: usize,
) -> Result<Fields, LineError> {
    let left = Cell::new(inputs_max);
    let seed = FieldsSeed(Left {
        left: &left,
        inputs_max,
    });
    seed.deserialize(parser).map_err(|error| syntax(&error))
}

/// Returns the refusal of a line that is no such JSON.
pub(super) fn syntax(error: &serde_json::Error) -> LineError {
    let said = error.to_string();
    let advice = match error.classify() {
        serde_json::error::Category::Eof => "Send each line whole, with a newline after it",
        serde_json::error::Category::Data if said.contains(TOO_MANY) => {
            "Submit it as several jobs, or raise --max-refs-per-tenant"
        }
        _ => PIPELINES_MD,
    };
    LineError::new(format!("the line is not as it should be: {said}"), advice)
}

/// Part of the message about too many inputs.
const TOO_MANY: &str = "inputs and files in one line";

/// The number of inputs and paths that may still come.
#[derive(Clone, Copy)]
struct Left<'a> {
    left: &'a Cell<usize>,
    inputs_max: usize,
}

impl Left<'_> {
    fn take<E: serde::de::Error>(self) -> Result<(), E> {
        let left =
            self.left.get().checked_sub(1).ok_or_else(|| {
                E::custom(format_args!("more than {} {TOO_MANY}", self.inputs_max))
            })?;
        self.left.set(left);
        Ok(())
    }
}

fn path<E: serde::de::Error>(path: Box<str>) -> Result<Box<str>, E> {
    match path.len() {
        0 => Err(E::custom("a path is empty")),
        1..=PATH_BYTES_MAX => Ok(path),
        len => Err(E::custom(format_args!(
            "a path has {len} bytes, more than {PATH_BYTES_MAX}"
        ))),
    }
}

struct FieldsSeed<'a>(Left<'a>);

impl<'de> DeserializeSeed<'de> for FieldsSeed<'_> {
    type Value = Fields;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Fields, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldsSeed<'_> {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key::<Box<str>>()? {
            match &*key {
                "v" => fields.v = Some(map.next_value()?),
                "op" => fields.op = Some(map.next_value()?),
                "tenant" => fields.submission.job.tenant = map.next_value()?,
                "job" => fields.submission.job.job = map.next_value()?,
                "task" => fields.task = Some(map.next_value()?),
                "app" => fields.submission.app = map.next_value()?,
                "attempt" => fields.submission.attempt = map.next_value()?,
                "dataset" => fields.submission.dataset = map.next_value()?,
                "expires_s" => fields.submission.expires_s = map.next_value()?,
                "consume" => fields.submission.consume = map.next_value()?,
                "files" => fields.submission.files = map.next_value_seed(Files(self.0))?,
                "tasks" => {
                    let tasks = TasksSeed(self.0, &mut fields.own_paths);
                    fields.tasks = map.next_value_seed(tasks)?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

struct Files<'a>(Left<'a>);

impl<'de> DeserializeSeed<'de> for Files<'_> {
    type Value = Vec<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Files<'_> {
    type Value = Vec<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of paths")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut files = Vec::new();
        while let Some(file) = seq.next_element()? {
            self.0.take()?;
            files.push(path(file)?);
        }
        Ok(files)
    }
}

struct TasksSeed<'a>(Left<'a>, &'a mut HashMap<Box<str>, u32>);

impl<'de> DeserializeSeed<'de> for TasksSeed<'_> {
    type Value = TaskList;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<TaskList, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for TasksSeed<'_> {
    type Value = TaskList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of tasks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TaskList, A::Error> {
        let mut list = TaskList::default();
        loop {
            let task = TaskSeed {
                left: self.0,
                paths: &mut *self.1,
                list: &mut list,
            };
            if seq.next_element_seed(task)?.is_none() {
                return Ok(list);
            }
            // A task without inputs takes memory too.
            self.0.take()?;
        }
    }
}

/// Adds a task to a list.
struct TaskSeed<'a> {
    left: Left<'a>,
    paths: &'a mut HashMap<Box<str>, u32>,
    list: &'a mut TaskList,
}

impl<'de> DeserializeSeed<'de> for TaskSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TaskSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a task: an object with id and in")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (left, list) = (self.left, self.list);
        let mut id = Box::default();
        while let Some(key) = map.next_key::<Box<str>>()? {
            match &*key {
                "id" => id = map.next_value()?,
                "in" => {
                    list.by_index = true;
                    map.next_value_seed(Indexes(left, &mut list.tasks))?;
                }
                "inputs" => {
                    list.by_path = true;
                    map.next_value_seed(Paths(left, &mut *self.paths, &mut list.tasks))?;
                }
                "after" => {
                    let at = list.tasks.len();
                    let before: HashSet<Box<str>> =
                        map.next_value_seed(Files(left))?.into_iter().collect();
                    list.after
                        .extend(before.into_iter().map(|before| (at, before)));
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        list.tasks.end_task(id);
        Ok(())
    }
}

struct Indexes<'a>(Left<'a>, &'a mut Tasks<Input>);

impl<'de> DeserializeSeed<'de> for Indexes<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Indexes<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of indexes into files, or of [index, offset, length]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(IndexedInput(input)) = seq.next_element()? {
            self.0.take()?;
            self.1.add_input(input);
        }
        Ok(())
    }
}

struct IndexedInput(Input);

impl<'de> Deserialize<'de> for IndexedInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = IndexedInput;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an index into files, or [index, offset, length]")
            }

            fn visit_u64<E: serde::de::Error>(self, index: u64) -> Result<IndexedInput, E> {
                // No line has as many files.
                let file = u32::try_from(index).unwrap_or(u32::MAX);
                let part = InputPart::Whole;
                Ok(IndexedInput(Input { file, part }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<IndexedInput, A::Error> {
                let mut next = || seq.next_element::<u64>();
                let (Some(index), Some(offset), Some(len)) = (next()?, next()?, next()?) else {
                    return Err(A::Error::custom("a range is [index, offset, length]"));
                };
                if seq.next_element::<IgnoredAny>()?.is_some() {
                    return Err(A::Error::custom("a range is [index, offset, length]"));
                }
                let file = u32::try_from(index).unwrap_or(u32::MAX);
                let part = InputPart::Range { offset, len };
                Ok(IndexedInput(Input { file, part }))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

struct Paths<'a>(
    Left<'a>,
    &'a mut HashMap<Box<str>, u32>,
    &'a mut Tasks<Input>,
);

impl<'de> DeserializeSeed<'de> for Paths<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// An input that names its file itself.
#[derive(Deserialize)]
struct NamedInput {
    path: Box<str>,
    off: Option<u64>,
    len: Option<u64>,
    #[serde(default)]
    recursive: bool,
}

impl<'de> Visitor<'de> for Paths<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects with path")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(named) = seq.next_element::<NamedInput>()? {
            self.0.take()?;
            let part = match (named.recursive, named.off, named.len) {
                (true, None, None) => InputPart::Recursive,
                (true, ..) => return Err(A::Error::custom("a directory has no off and len")),
                (false, None, None) => InputPart::Whole,
                (false, offset, Some(len)) => InputPart::Range {
                    offset: offset.unwrap_or(0),
                    len,
                },
                (false, Some(_), None) => return Err(A::Error::custom("off without len")),
            };
            let known = u32::try_from(self.1.len()).unwrap_or(u32::MAX);
            let file = *self.1.entry(path(named.path)?).or_insert(known);
            self.2.add_input(Input { file, part });
        }
        Ok(())
    }
}
