package evacuation

import (
	"crypto/subtle"
	"encoding/hex"
	"strings"
	"time"
)

// Path is where the API server asks about evictions. The API server shows no certificate when it asks
// webhooks. So virt-api adds a secret to the path that one of its webhooks names, and trusts a question
// that has the secret. The secret stands in the message of a question that fails. So that webhook is
// asked only for accounts that may evict pods of all namespaces: no other account sees such a message.
const Path = "/evictions-validate"

// Webhook is the name of the webhook whose path has the secret, in config/api/webhooks.yaml.
const Webhook = "evictions-everywhere.kubevirt.io"

// Purpose is what the keys of a day's secrets are for. Another purpose has other keys.
func Purpose(day time.Time) string {
	return "kubeqemu.io evictions v1 " + day.UTC().Format(time.DateOnly)
}

// Purposes are those whose secrets are known: of today, of yesterday, and of tomorrow for a replica whose
// clock is behind.
func Purposes(now time.Time) []string {
	const day = 24 * time.Hour
	return []string{Purpose(now), Purpose(now.Add(-day)), Purpose(now.Add(day))}
}

// SecretPath is the path with the secret of a key.
func SecretPath(key []byte) string { return Path + "/" + hex.EncodeToString(key) }

// Trusted says whether a path has the secret of one of the keys.
func Trusted(path string, keys [][]byte) bool {
	secret, ok := strings.CutPrefix(path, Path+"/")
	if !ok {
		return false
	}
	found := 0
	for _, key := range keys {
		found |= subtle.ConstantTimeCompare([]byte(secret), []byte(hex.EncodeToString(key)))
	}
	return found == 1
}
