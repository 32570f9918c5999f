//! Slurm's short form of host lists: `nid[001-128,200],login1`.
//!
//! Pure. [`split`] cuts a text at the commas outside of brackets, [`expand`] writes out the names of one
//! entry, and [`fold`] is their inverse: its text expands to exactly the same names in the same order. The
//! order of the names determines the tree, so this module never sorts. The names are counted before they are
//! made, because ten characters can stand for 10^18 hosts.

/// The longest host name that is made: the limit of DNS, and room for a port.
const NAME_BYTES_MAX: usize = 260;

/// The maximum number of digits in a host's number.
const DIGITS_MAX: usize = 18;

/// Why an entry cannot be expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The text is invalid; the message shows a valid one.
    Text(&'static str),
    /// It stands for more names than allowed.
    TooMany,
}

/// The entries of `line`, cut at commas outside of brackets and trimmed. Empty entries are skipped.
pub(super) fn split(line: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    line.split(move |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|entry| !entry.is_empty())
}

/// One part of an entry: text as it is, or the numbers of a bracket.
#[derive(Debug)]
enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// Numbers from `first` to `last`, at least `width` digits each.
#[derive(Debug, Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

/// Appends the names that `entry` stands for to `names`, at most `room` names.
///
/// Several brackets multiply, the leftmost changing slowest, as in Slurm. A range's numbers have at
/// least as many digits as its first one is written with.
///
/// # Errors
/// The entry is malformed, or stands for more than `room` names. Then `names` is not changed.
pub(super) fn expand(entry: &str, room: usize, names: &mut Vec<String>) -> Result<(), Malformed> {
    let parts = parse(entry)?;
    let mut count = 1_u64;
    let mut bytes = 0;
    for part in &parts {
        match part {
            Part::Text(text) => bytes += text.len(),
            Part::Numbers(ranges) => {
                let of_range = |range: &Range| range.last - range.first + 1;
                let here = ranges.iter().map(of_range).fold(0, u64::saturating_add);
                count = count.saturating_mul(here);
                bytes += DIGITS_MAX;
            }
        }
    }
    if usize::try_from(count).map_or(true, |count| count > room) {
        return Err(Malformed::TooMany);
    }
    if bytes > NAME_BYTES_MAX {
        return Err(Malformed::Text("no host has a name as long as that"));
    }
    let mut made = vec![String::with_capacity(bytes)];
    for part in &parts {
        match part {
            Part::Text(text) => made.iter_mut().for_each(|name| name.push_str(text)),
            Part::Numbers(ranges) => {
                for name in std::mem::take(&mut made) {
                    for &Range { first, last, width } in ranges {
                        let numbers = first..=last;
                        made.extend(numbers.map(|number| format!("{name}{number:0width$}")));
                    }
                }
            }
        }
    }
    names.append(&mut made);
    Ok(())
}

fn parse(entry: &str) -> Result<Vec<Part<'_>>, Malformed> {
    let mut parts = Vec::new();
    let mut rest = entry;
    while let Some((text, after)) = rest.split_once('[') {
        let (inside, after) = after
            .split_once(']')
            .ok_or(Malformed::Text("a ] is missing"))?;
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let ranges = inside.split(',').map(parse_range);
        parts.push(Part::Numbers(ranges.collect::<Result<_, _>>()?));
        rest = after;
    }
    if rest.contains(']')
        || parts
            .iter()
            .any(|part| matches!(part, Part::Text(text) if text.contains(']')))
    {
        return Err(Malformed::Text("a [ is missing"));
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

fn parse_range(text: &str) -> Result<Range, Malformed> {
    const FORM: Malformed =
        Malformed::Text("in the brackets stand numbers and ranges, as in nid[001-128,200]");
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        if !plain || digits.len() > DIGITS_MAX {
            return Err(FORM);
        }
        digits.parse::<u64>().map_err(|_too_large| FORM)
    };
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(low)?, number(high)?);
    if last < first {
        return Err(Malformed::Text(
            "a range goes from the lower number to the higher",
        ));
    }
    Ok(Range {
        first,
        last,
        width: low.len(),
    })
}

/// `names` in the short form: [`super::parse`] returns the same names in the same order.
///
/// Runs of names that differ in one number become a bracket. Runs of such entries are folded again, as long as
/// the new bracket is left of the others: a bracket further right would change the order.
#[must_use]
pub fn fold<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut entries: Vec<String> = names.into_iter().map(ToOwned::to_owned).collect();
    loop {
        let mut runs: Vec<Run<'_>> = Vec::new();
        for entry in &entries {
            if !runs.last_mut().is_some_and(|run| run.take(entry)) {
                runs.push(Run {
                    first: entry,
                    around: None,
                    ranges: Vec::new(),
                });
            }
        }
        let folded: Vec<String> = runs.iter().map(Run::text).collect();
        if folded.len() == entries.len() {
            return folded.join(",");
        }
        entries = folded;
    }
}

/// Consecutive entries that differ in one number only.
struct Run<'a> {
    /// The first entry.
    first: &'a str,
    /// The texts before and after the number, once there are two entries.
    around: Option<(&'a str, &'a str)>,
    /// The numbers as ranges.
    ranges: Vec<Range>,
}

impl<'a> Run<'a> {
    /// Adds `entry` if it differs in the same number only. Returns whether it was added.
    fn take(&mut self, entry: &'a str) -> bool {
        let Some((before, after)) = self.around.or_else(|| common(self.first, entry)) else {
            return false;
        };
        let first = between(self.first, before, after);
        let (Some(first), Some(number)) = (first, between(entry, before, after)) else {
            return false;
        };
        if self.around.replace((before, after)).is_none() {
            self.ranges.push(first);
        }
        match self.ranges.last_mut() {
            Some(range) if range.continues_with(number) => range.last = number.last,
            _ => self.ranges.push(number),
        }
        true
    }

    fn text(&self) -> String {
        let Some((before, after)) = self.around else {
            return self.first.to_owned();
        };
        let ranges: Vec<String> = self.ranges.iter().map(Range::text).collect();
        format!("{before}[{}]{after}", ranges.join(","))
    }
}

impl Range {
    /// Whether `number` is the next number of the range, with the same padding.
    fn continues_with(&self, number: Self) -> bool {
        let written = |value: u64| value.checked_ilog10().map_or(1, |log| log as usize + 1);
        self.last.checked_add(1) == Some(number.first)
            && number.width == written(number.first).max(self.width)
    }

    fn text(&self) -> String {
        let (first, last, width) = (self.first, self.last, self.width);
        if first == last {
            format!("{first:0width$}")
        } else {
            format!("{first:0width$}-{last:0width$}")
        }
    }
}

/// The texts that two entries share before and after the one number in which they differ. Returns `None` if
/// they differ in more than one number, or if a bracket precedes the number.
fn common<'a>(a: &'a str, b: &str) -> Option<(&'a str, &'a str)> {
    let is_digit = |text: &str, at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let equal = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let mut start = equal;
    // The number may begin with digits that both entries share.
    while start > 0 && is_digit(a, start - 1) {
        start -= 1;
    }
    let mut end = start;
    while is_digit(a, end) {
        end += 1;
    }
    let (before, after) = (a.get(..start)?, a.get(end..)?);
    let other = b.get(start..)?.strip_suffix(after)?;
    let one_number = !other.is_empty() && other.bytes().all(|byte| byte.is_ascii_digit());
    (start < end && one_number && !before.contains('[')).then_some((before, after))
}

/// The number between `before` and `after` in `entry`.
fn between(entry: &str, before: &str, after: &str) -> Option<Range> {
    let digits = entry.strip_prefix(before)?.strip_suffix(after)?;
    let number = parse_range(digits).ok()?;
    (number.width == digits.len()).then_some(number)
}

#[cfg(test)]
mod tests;
