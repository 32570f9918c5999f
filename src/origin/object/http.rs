//! What some servers need beyond the client of `object_store`.
//!
//! - A plain HTTP server has no listing, but on all servers of files `name/` exists for a directory and is
//!   missing for a file. `object_store` paths cannot end in a slash, so it is appended here to a request
//!   that is marked with [`AsDirectory`].
//! - Some servers (such as `rclone serve s3`) answer a request for a range with status 200 instead of 206,
//!   but with `Content-Range`. The status is corrected, and the client compares the range with the
//!   requested one.
//! - The store's [`Gate`] is informed of every attempt here: the client repeats refused requests by itself,
//!   and its callers never see them.
//! - A listing may hold keys that cannot be names: see [`super::listed_keys`].

use super::gate::Gate;
use super::listed_keys::{listed_prefix, with_valid_keys};
use futures_util::future::BoxFuture;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, HeaderValue};
use std::sync::Arc;

/// Marks a request (as an extension of its options) as one for `path/`.
#[derive(Clone, Copy, Debug)]
pub(super) struct AsDirectory;

/// Makes the clients of one store.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    /// Is informed of every attempt.
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
    // The desugared form of an async trait method, so that no macro crate is needed for it.
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
            // Taken before the request: a refusal counts only for the limit under which it was sent.
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
                // The client requires a length, which a generated index often lacks.
                response
                    .headers_mut()
                    .entry("content-length")
                    .or_insert(HeaderValue::from_static("0"));
            }
            if let Some(prefix) = listed
                && response.status().is_success()
            {
                let (head, body) = response.into_parts();
                let page = with_valid_keys(body.bytes().await?, &prefix);
                return Ok(HttpResponse::from_parts(head, page.into()));
            }
            Ok(response)
        })
    }
}
