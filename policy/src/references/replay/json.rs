//! Reads a trace from JSON. Names become numbers while the events are read, so that their texts are in
//! memory once.

use super::event::{Event, Options, or_default};
use super::trace::{Trace, TraceBuilder, TraceError};
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;

impl Trace {
    /// Reads a trace in the format of the [module](super), and checks it.
    ///
    /// # Errors
    /// Names the first entry that is wrong, and says how to correct it.
    pub fn from_json(json: &[u8]) -> Result<Self, TraceError> {
        let document: Document = serde_json::from_slice(json)?;
        let mut builder = document.events.0?;
        builder.set(document.cache, document.options);
        for (name, size) in &document.blocks.0 {
            builder.block(name, *size)?;
        }
        for name in &document.initial_lru_to_mru {
            builder.initial(name)?;
        }
        builder.build()
    }
}

#[derive(Deserialize)]
struct Document {
    cache: u64,
    blocks: Sizes,
    #[serde(default, deserialize_with = "or_default")]
    initial_lru_to_mru: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    options: Options,
    events: Events,
}

/// The blocks with their sizes, in the order of the document. A map would hide repeated names.
struct Sizes(Vec<(String, u64)>);

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_map(SizesVisitor).map(Self)
    }
}

struct SizesVisitor;

impl<'de> Visitor<'de> for SizesVisitor {
    type Value = Vec<(String, u64)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of blocks with their sizes in bytes")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut sizes = Vec::new();
        while let Some(block) = map.next_key::<String>()? {
            let size = map.next_value();
            let size = size.map_err(|error| at(format_args!("blocks: {block:?}"), &error))?;
            sizes.push((block, size));
        }
        Ok(sizes)
    }
}

/// The events, with numbers for names.
struct Events(Result<TraceBuilder, TraceError>);

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        value.deserialize_seq(EventsVisitor).map(Self)
    }
}

struct EventsVisitor;

impl<'de> Visitor<'de> for EventsVisitor {
    type Value = Result<TraceBuilder, TraceError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut builder = TraceBuilder::default();
        let mut index = 0_usize;
        while let Some(event) = list.next_element_seed(EventAt(index))? {
            index += 1;
            if let Err(error) = builder.event(&event) {
                // The rest must be JSON all the same.
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(Err(error));
            }
        }
        Ok(Ok(builder))
    }
}

/// Reads the event of this index, which stands in its errors.
struct EventAt(usize);

impl<'de> DeserializeSeed<'de> for EventAt {
    type Value = Event;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Event, D::Error> {
        let event = Event::deserialize(value);
        event.map_err(|error| at(format_args!("events[{}]", self.0), &error))
    }
}

/// Puts the place before an error.
fn at<E: Error>(place: fmt::Arguments<'_>, error: &E) -> E {
    E::custom(format_args!("{place}: {error}"))
}
