//! The cloud service from which the clients of Azure and Google request credentials if none are configured, and the
//! error texts for the case that it supplies none. (`aws` is about the client of S3.)
//!
//! Such a request fails like any other request of the client: with a refused connection, or with a status.
//! Only the address in the error's text shows that the request never reached the store. The clients offer
//! no other sign; the conformance suite checks the texts (`refusals`).

use object_store::azure::AzureConfigKey;

/// The metadata service of virtual machines.
const METADATA: &str = "http://169.254.169.254";

/// See the module.
#[derive(Default)]
pub(super) struct CredentialService {
    /// The beginning of the service's addresses, or a part of them that no store's address contains. Empty:
    /// the store needs no credentials.
    address: String,
    /// Describes the configured credentials that the client did not find.
    pub(super) missing: &'static str,
    /// The hint for the user.
    pub(super) advice: String,
}

impl CredentialService {
    /// The service that the Google Cloud Storage client uses.
    pub(super) fn google() -> Self {
        Self {
            address: "/computeMetadata/v1/".to_owned(),
            missing: "no Google credentials: neither GOOGLE_SERVICE_ACCOUNT nor \
                      GOOGLE_APPLICATION_CREDENTIALS is set, and gcloud has stored none",
            advice: "set one of them to a file with a key, run gcloud auth application-default login, or \
                     set GOOGLE_SKIP_SIGNATURE=true for a public bucket"
                .to_owned(),
        }
    }

    /// The service that the Azure client uses with the settings `keys`.
    pub(super) fn azure(keys: &[(AzureConfigKey, String)]) -> Self {
        let mut named = keys.iter().rev();
        let named = named.find(|(key, _)| *key == AzureConfigKey::MsiEndpoint);
        let default = format!("{METADATA}/metadata/identity/oauth2/token");
        Self {
            address: named.map_or(default, |(_, endpoint)| endpoint.clone()),
            missing: "no Azure credentials: neither AZURE_STORAGE_ACCOUNT_KEY nor a SAS token nor a \
                      client's secret is set",
            advice:
                "set one of them, or AZURE_SKIP_SIGNATURE=true for a public container (what az \
                     login keeps is read with AZURE_USE_AZURE_CLI=true only)"
                    .to_owned(),
        }
    }

    /// Whether an error with this `text` is about a request to this service.
    pub(super) fn is_requested_in(&self, text: &str) -> bool {
        !self.address.is_empty()
            && text.contains("Error performing ")
            && text.contains(&self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_to_the_store_are_not_taken_for_the_service() {
        let service = CredentialService::azure(&[]);
        for (text, expected) in [
            (
                "Error performing GET http://169.254.169.254/metadata/identity/oauth2/token in 1s",
                true,
            ),
            (
                "Error performing GET https://a.blob.core.windows.net/b/metadata/a in 1s",
                false,
            ),
            (
                "http://169.254.169.254/metadata/identity/oauth2/token",
                false,
            ),
        ] {
            assert_eq!(service.is_requested_in(text), expected, "{text}");
        }
        let none = CredentialService::default();
        assert!(!none.is_requested_in("Error performing GET http://host/a in 1s"));
    }
}
