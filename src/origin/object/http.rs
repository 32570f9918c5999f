//! What servers need beyond `object_store`'s own client.
//!
//! - A plain HTTP server has no listing, but servers of files agree on one thing: `name/` is there for a
//!   directory and missing for a file. `object_store` paths cannot end in a slash, so a request marked
//!   with [`AsDirectory`] gets its slash here, on its way out.
//! - Some servers (`rclone serve s3` is one) answer a range with 200 instead of 206, `Content-Range` and
//!   all. What the answer says of itself holds: it is taken for the 206 that it is, and the client
//!   compares the range with what was asked for.
//! - The store's [`Gate`] learns of every attempt here: the client repeats refused requests by itself, and
//!   its callers never hear of them.
//! - A listing may hold keys that cannot be names: see [`super::listed_keys`].

use super::gate::Gate;
use super::listed_keys::{listed_prefix, understandable};
use futures_util::future::BoxFuture;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};
use std::sync::Arc;

/// Marks a request (as an extension of its options) that asks for `path/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsDirectory;

/// Makes the clients of one store.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// What is told of every attempt.
    pub(super) gate: Arc<Gate>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        let gate = Arc::clone(&self.gate);
        Ok(HttpClient::new(Client { inner, gate }))
    }
}

#[derive(Debug)]
struct Client {
    inner: HttpClient,
    gate: Arc<Gate>,
}

impl HttpService for Client {
    // The desugared form of an async trait method, so that no macro crate is needed for one method.
    fn call<'a, 'b>(
        &'a self,
        mut request: HttpRequest,
    ) -> BoxFuture<'b, Result<HttpResponse, HttpError>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let probe = request.extensions().get::<AsDirectory>().is_some();
            if probe {
                let slashed = format!("{}/", request.uri());
                *request.uri_mut() = slashed
                    .parse()
                    .map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
            }
            let ranged = request.headers().contains_key("range");
            let listed = request.uri().query().and_then(listed_prefix);
            let began = self.gate.round();
            let response = self.inner.execute(request).await;
            match &response {
                Ok(response) => self.gate.answered(began, response.status().as_u16()),
                Err(error) => self.gate.failed(began, error),
            }
            let mut response = response?;
            let says_range = response.headers().contains_key("content-range");
            if ranged
                && says_range
                && response.status() == 200
                && let Ok(partial) = 206_u16.try_into()
            {
                *response.status_mut() = partial;
            }
            if probe && response.status().is_success() {
                // A generated index often comes without a length, which is of no interest here.
                response
                    .headers_mut()
                    .entry("content-length")
                    .or_insert(HeaderValue::from_static("0"));
            }
            if let Some(prefix) = listed
                && response.status().is_success()
            {
                let (head, body) = response.into_parts();
                let page = understandable(body.bytes().await?, &prefix);
                return Ok(HttpResponse::from_parts(head, page.into()));
            }
            Ok(response)
        })
    }
}
