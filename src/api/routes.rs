//! Every route in one table: what is not in it is not served, and what is in it is documented.

use super::error::ApiError;
use serde_json::Value;

/// What a route does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// Lists the datasets.
    Datasets,
    /// Declares one.
    AddDataset,
    /// Shows one.
    Dataset,
    /// Takes one back.
    RemoveDataset,
    /// `allocateCacheSize`.
    AllocateCache,
    /// Lists the jobs.
    Jobs,
    /// Declares one.
    AddJob,
    /// Shows one.
    Job,
    /// Ends one.
    EndJob,
    /// `allocateRemoteIO`.
    AllocateIo,
    /// All that is decided, with what nodes report.
    Allocation,
    /// The nodes.
    Nodes,
    /// Changes the policy.
    Policy,
    /// What if.
    Plan,
    /// The OpenAPI document.
    Document,
}

/// Method, path (`{}` for a name) and what it does.
pub const ROUTES: &[(&str, &str, Route)] = &[
    ("GET", "/v1/datasets", Route::Datasets),
    ("POST", "/v1/datasets", Route::AddDataset),
    ("GET", "/v1/datasets/{name}", Route::Dataset),
    ("DELETE", "/v1/datasets/{name}", Route::RemoveDataset),
    ("PUT", "/v1/datasets/{name}/cache", Route::AllocateCache),
    ("GET", "/v1/jobs", Route::Jobs),
    ("POST", "/v1/jobs", Route::AddJob),
    ("GET", "/v1/jobs/{id}", Route::Job),
    ("DELETE", "/v1/jobs/{id}", Route::EndJob),
    ("PUT", "/v1/jobs/{id}/remote-io", Route::AllocateIo),
    ("GET", "/v1/allocation", Route::Allocation),
    ("GET", "/v1/nodes", Route::Nodes),
    ("PUT", "/v1/policy", Route::Policy),
    ("POST", "/v1/plan", Route::Plan),
    ("GET", "/openapi.json", Route::Document),
];

/// The route of a request, and the name in its path.
///
/// # Errors
/// There is none: 404, or 405 where only the method is another.
pub(super) fn find(method: &str, path: &str) -> Result<(Route, String), ApiError> {
    let path = path.split('?').next().unwrap_or_default();
    let mut others = Vec::new();
    for (wanted, pattern, route) in ROUTES {
        let Some(name) = matched(pattern, path) else {
            continue;
        };
        if *wanted == method {
            return Ok((*route, name?));
        }
        others.push(*wanted);
    }
    if others.is_empty() {
        let error = format!("nothing is served at {path}");
        return Err(ApiError::new(404, error, "GET /openapi.json tells what is"));
    }
    let error = format!("{path} does not take {method}");
    Err(ApiError::new(
        405,
        error,
        format!("It takes {}", others.join(", ")),
    ))
}

/// Whether `path` has the form of `pattern`; the name in it.
fn matched(pattern: &str, path: &str) -> Option<Result<String, ApiError>> {
    let mut name = Ok(String::new());
    let mut parts = path.split('/');
    for wanted in pattern.split('/') {
        let part = parts.next()?;
        if wanted.starts_with('{') {
            name = decoded(part);
        } else if wanted != part {
            return None;
        }
    }
    parts.next().is_none().then_some(name)
}

/// A part of a path without its percent signs: names of jobs have slashes.
fn decoded(part: &str) -> Result<String, ApiError> {
    let wrong = || {
        let advice = "Write names as in slurm%3A7, with percent signs and two hexadecimal digits";
        ApiError::malformed(format!("{part:?} is not a part of a path"), advice)
    };
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2).ok_or_else(wrong)?;
        let digits = std::str::from_utf8(digits).ok().ok_or_else(wrong)?;
        bytes.push(u8::from_str_radix(digits, 16).ok().ok_or_else(wrong)?);
        rest = behind;
    }
    String::from_utf8(bytes).ok().ok_or_else(wrong)
}

/// `name` as a part of a path.
#[must_use]
pub fn encoded(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// `docs/openapi.json`.
#[must_use]
pub fn document() -> Value {
    serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_from_paths() {
        for name in ["a", "slurm:77_[3]", "k8s:space/pod", "ü"] {
            let path = format!("/v1/jobs/{}", encoded(name));
            assert_eq!(find("GET", &path), Ok((Route::Job, name.to_owned())));
        }
        let (route, _) = find("PUT", "/v1/jobs/a%2Fb/remote-io?x=1").unwrap();
        assert_eq!(route, Route::AllocateIo);
    }

    #[test]
    fn what_is_not_there_says_what_is() {
        for (method, path, status) in [
            ("GET", "/", 404),
            ("GET", "/v1/jobs/a/b", 404),
            ("GET", "/v1/jobs/", 200),
            ("PATCH", "/v1/jobs", 405),
            ("GET", "/v1/jobs/%2", 400),
            ("GET", "/v1/jobs/%zz", 400),
            ("GET", "/v1/jobs/%ff", 400),
        ] {
            let found = find(method, path).map_or_else(|e| e.into_answer().status, |_| 200);
            assert_eq!(found, status, "{method} {path}");
        }
        let error = find("PATCH", "/v1/jobs").unwrap_err().into_answer();
        assert_eq!(error.body["try"], "It takes GET, POST");
    }
}
