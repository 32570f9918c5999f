//! The table of all routes, and their permitted users.

use super::datasets::get_view;
use super::error::ControlError;
use super::request::Access;
use super::{
    Answer, Control, batches, chunks, content, datasets, entries, images, node, pipelines, plan,
    reload, views,
};
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, delete, get, on, post, put};
use axum::{Extension, Router};
use hyper::StatusCode;
use serde_json::Value;

/// A method, a path with `{name}` for a name, and its handler.
pub(super) type Route = (&'static str, &'static str, Access, MethodRouter<Control>);

/// All routes.
#[rustfmt::skip]
pub(super) fn routes() -> Vec<Route> {
    use Access::{Host, Owner, Users};
    vec![
        ("GET", "/metrics", Users, get(node::metrics)),
        ("GET", "/v1/stats", Users, get(node::stats)),
        ("GET", "/v1/cluster", Users, get(node::cluster)),
        ("POST", "/v1/clear", Owner, post(node::clear)),
        ("GET", "/v1/options", Owner, get(node::options)),
        ("POST", "/v1/reload", Host, post(reload::reload)),
        ("POST", "/v1/recording", Owner, post(node::start_recording)),
        ("DELETE", "/v1/recording", Owner, delete(node::stop_recording)),
        ("POST", "/v1/record", Owner, post(node::record)),
        ("POST", "/v1/warm", Owner, post(node::warm)),
        ("GET", "/v1/images", Users, get(images::images)),
        ("POST", "/v1/attend", Host, post(images::attend)),
        ("GET", "/v1/daemon", Users, get(node::daemon)),
        ("POST", "/v1/upgrade", Host, post(node::upgrade)),
        ("GET", "/v1/datasets", Users, get_view(views::datasets)),
        ("POST", "/v1/datasets", Owner, post(datasets::add)),
        ("GET", "/v1/datasets/{name}", Users, get(datasets::show)),
        ("DELETE", "/v1/datasets/{name}", Owner, delete(datasets::remove)),
        ("PUT", "/v1/datasets/{name}/cache", Owner, put(datasets::allocate_cache)),
        ("PUT", "/v1/datasets/{name}/keep", Owner, put(datasets::set_keep)),
        ("GET", "/v1/datasets/{name}/residency", Users, get(entries::residency)),
        ("GET", "/v1/datasets/{name}/homes", Users, get(entries::homes)),
        ("GET", "/v1/datasets/{name}/chunks", Users, get(chunks::show)),
        ("POST", "/v1/datasets/{name}/chunks", Users, post(chunks::join)),
        ("POST", "/v1/datasets/{name}/chunks/{chunk}/ref", Users, post(chunks::refer)),
        ("POST", "/v1/datasets/{name}/chunks/{chunk}/unref", Users, post(chunks::release)),
        ("POST", "/v1/content/lookup", Users, post(content::look_up)),
        ("POST", "/v1/content/get", Users, post(content::get)),
        ("POST", "/v1/content/insert", Users, post(content::insert)),
        ("GET", "/v1/jobs", Users, get_view(views::jobs)),
        ("POST", "/v1/jobs", Owner, post(datasets::add_job)),
        ("GET", "/v1/jobs/{id}", Users, get(datasets::show_job)),
        ("GET", "/v1/ended-jobs", Users, get_view(views::ended_jobs)),
        ("GET", "/v1/jobs/{id}/mode", Users, get(batches::mode)),
        ("POST", "/v1/jobs/{id}/report", Users, post(batches::report)),
        ("DELETE", "/v1/jobs/{id}", Owner, delete(datasets::end_job)),
        ("PUT", "/v1/jobs/{id}/remote-io", Owner, put(datasets::allocate_remote_io)),
        ("POST", "/v1/lrc", Users, post(pipelines::converse)),
        ("GET", "/v1/lrc/jobs", Users, get(pipelines::jobs)),
        ("GET", "/v1/lrc/tasks", Users, get(pipelines::tasks)),
        ("GET", "/v1/lrc/counts", Users, get(pipelines::counts)),
        ("POST", "/v1/lrc/flush", Owner, post(pipelines::flush)),
        ("GET", "/v1/allocation", Users, get_view(views::allocation)),
        ("GET", "/v1/nodes", Users, get_view(views::nodes)),
        ("PUT", "/v1/policy", Owner, put(datasets::set_policy)),
        ("POST", "/v1/plan", Owner, post(plan::plan)),
        ("GET", "/openapi.json", Users, get(async || Answer::of(document()))),
    ]
}

/// The routes that clients with `access` may use.
pub(super) fn router(control: Control, access: Access) -> Router {
    let add = |router: Router<Control>, (method, path, needed, handler): Route| {
        let refused = method_filter(method);
        match access {
            _ if access >= needed => router.route(path, handler),
            // Programs and credentials are not taken from other nodes.
            Access::Owner => router.route(path, on(refused, only_here)),
            _ => router.route(path, on(refused, only_owner)),
        }
    };
    routes()
        .into_iter()
        .fold(Router::new(), add)
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .with_state(control)
        .layer(Extension(access))
}

fn method_filter(method: &str) -> MethodFilter {
    match method {
        "DELETE" => MethodFilter::DELETE,
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        _ => MethodFilter::GET,
    }
}

async fn only_owner() -> ControlError {
    let error = "only the owner of the mount and root may do this";
    ControlError::new(403, error, "Other users can look, and read datasets")
}

async fn only_here(request: Request) -> ControlError {
    let error = format!("{} is not served over TCP", request.uri().path());
    ControlError::new(403, error, "Run the command on the node itself")
}

async fn unknown_path(request: Request) -> ControlError {
    let error = format!("nothing is served at {}", request.uri().path());
    ControlError::new(404, error, "GET /openapi.json tells what is")
}

async fn unknown_method(request: Request) -> ControlError {
    let path = request.uri().path();
    let routes = routes().into_iter();
    let routes = routes.filter(|(_, pattern, ..)| matches(pattern, path));
    let methods: Vec<&str> = routes.map(|(method, ..)| method).collect();
    let error = format!("{path} does not take {}", request.method());
    ControlError::new(405, error, format!("It takes {}", methods.join(", ")))
}

/// Whether `path` has the form of `pattern`, in which `{name}` stands for any one component.
fn matches(pattern: &str, path: &str) -> bool {
    let (expected, found) = (pattern.split('/'), path.split('/'));
    expected.clone().count() == found.clone().count()
        && (expected.zip(found))
            .all(|(expected, found)| expected.starts_with('{') || expected == found)
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let text = self.body.to_string() + "\n";
        (status, [("content-type", "application/json")], text).into_response()
    }
}

impl IntoResponse for ControlError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

/// `docs/openapi.json`.
#[must_use]
pub fn document() -> Value {
    serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap_or_default()
}
