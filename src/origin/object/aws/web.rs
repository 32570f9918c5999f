//! Requests to the services that issue credentials. They pass no gate, because they are no load on the store.

use super::super::chain::root_cause;
use super::error::CredentialError;
use crate::origin::options::Retries;
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, ReqwestConnector,
};

/// Attempts for one question. More would keep readers waiting whose credentials have expired.
const ATTEMPTS: u32 = 3;
/// Answers are a few kilobytes: the longest part is a session's token.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A client of the services.
#[derive(Debug)]
pub(super) struct Web {
    client: HttpClient,
    retries: Retries,
}

/// The answer of a service.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

impl Web {
    /// A client with the proxy, the certificates and the timeouts of the store's client.
    pub(super) fn new(options: &ClientOptions, retries: Retries) -> object_store::Result<Self> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(Self { client, retries })
    }

    /// The answer to `request`, which `service` gets. Repeats it while the service fails.
    pub(super) async fn ask(
        &self,
        service: &str,
        request: HttpRequest,
    ) -> Result<Answer, CredentialError> {
        let mut delay = self.retries.backoff;
        for _ in 1..ATTEMPTS {
            match self.once(request.clone()).await {
                Ok(answer) if answer.status < 500 && answer.status != 429 => return Ok(answer),
                _ => tokio::time::sleep(delay).await,
            }
            delay = (delay * 2).min(self.retries.backoff_max);
        }
        self.once(request).await.map_err(|error| {
            CredentialError::unavailable(
                format!(
                    "no AWS credentials: {service} does not answer ({})",
                    root_cause(&error)
                ),
                "check the network, proxies, and the region or endpoint of the profile",
            )
        })
    }

    async fn once(&self, request: HttpRequest) -> Result<Answer, HttpError> {
        let (head, body) = self.client.execute(request).await?.into_parts();
        let mut pieces = HttpResponse::new(body).into_body().bytes_stream();
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            // The rest of a longer answer is left out, so it cannot be parsed.
            if body.len() + piece.len() > ANSWER_BYTES_MAX {
                break;
            }
            body.extend_from_slice(&piece);
        }
        Ok(Answer {
            status: head.status.as_u16(),
            body,
        })
    }
}

/// The end of the names of Amazon's hosts in `region`.
pub(super) fn domain(region: &str) -> &'static str {
    match region.starts_with("cn-") {
        true => "amazonaws.com.cn",
        false => "amazonaws.com",
    }
}
