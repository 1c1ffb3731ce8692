package upload

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// tokenLife is how long after a token was given out an upload may begin.
const tokenLife = 5 * time.Minute

// maxToken bounds a token, in bytes: names and a UID are shorter.
const maxToken = 2 << 10

// Purpose is what the keys of tokens are for. Another purpose has other keys.
const Purpose = "kubeqemu.io upload token v1"

// Keys are the keys of tokens.
type Keys struct {
	// Sign is the key of new tokens, and Valid are all keys that tokens may have.
	Sign  []byte
	Valid [][]byte
}

// grant is what a token permits: to upload an image into one claim. A claim that comes later under the
// same name has another UID.
type grant struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	UID       string `json:"uid"`
	// Until is the end, in seconds since 1970.
	Until int64 `json:"until"`
}

var encoding = base64.RawURLEncoding.Strict()

// sign makes the token of a grant: the grant as JSON, a dot, and a MAC, both in base64.
func (k Keys) sign(g grant) (string, error) {
	text, err := json.Marshal(g)
	if err != nil {
		return "", fmt.Errorf("encode a token: %w", err)
	}
	payload := encoding.EncodeToString(text)
	token := payload + "." + encoding.EncodeToString(mac(k.Sign, payload))
	if len(token) > maxToken {
		return "", fmt.Errorf("encode a token: it is longer than %d bytes", maxToken)
	}
	return token, nil
}

// errToken says that a token permits nothing. It does not say why: nobody honest needs to know.
var errToken = errors.New("the token is not virt-api's, or has expired")

// verify returns what a token permits now.
func (k Keys) verify(token string, now time.Time) (grant, error) {
	payload, signature, found := strings.Cut(token, ".")
	got, err := encoding.DecodeString(signature)
	if !found || len(token) > maxToken || err != nil || !k.made(payload, got) {
		return grant{}, errToken
	}
	text, err := encoding.DecodeString(payload)
	if err != nil {
		return grant{}, errToken
	}
	var g grant
	if err := json.Unmarshal(text, &g); err != nil {
		return grant{}, errToken
	}
	// A token from the future is of a clock that was wrong.
	if left := time.Unix(g.Until, 0).Sub(now); left <= 0 || left > 2*tokenLife || g.Namespace == "" || g.Claim == "" || g.UID == "" {
		return grant{}, errToken
	}
	return g, nil
}

// made says whether one of the keys made a MAC.
func (k Keys) made(payload string, signature []byte) bool {
	valid := false
	for _, key := range k.Valid {
		if hmac.Equal(mac(key, payload), signature) {
			valid = true
		}
	}
	return valid
}

func mac(key []byte, payload string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(payload))
	return h.Sum(nil)
}
