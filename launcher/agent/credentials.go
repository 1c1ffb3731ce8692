package agent

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/guestagent"
	"github.com/kubeqemu/kubeqemu/launcher/secrets"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// resyncInterval is after how long unchanged credentials are set again, over what somebody
	// else has set in the guest. The value is KubeVirt's.
	resyncInterval = 5 * time.Minute
	// Bounds of what Secrets give the guest's users, in bytes where it is text.
	maxAccountData = 256 << 10 // of all of them
	maxAccounts    = 256       // with a password
	maxUserName    = 64
	maxPassword    = 512 // crypt(3) takes no more
)

// Credentials are the Secrets that the guest's agent brings into the guest.
type Credentials struct {
	Folder string // of the Secrets
	Wanted []control.AgentCredential
}

// accounts are the keys and passwords that the guest's users must have. They must not be
// printed.
type accounts struct {
	Keys      map[string][]string // by user
	Passwords map[string]string
}

// isAccountName reports whether the guest's tools take a user's name: no colon, no line break,
// nothing like an option. A Secret's entries may have other names.
func isAccountName(name string) bool {
	const first = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."
	return name != "" && strings.Contains(first, name[:1]) && strings.Trim(name, first+"-@$") == ""
}

// read reads what the Secrets hold now. A user whom several Secrets name gets the keys of all
// of them.
func (c Credentials) read() (accounts, error) {
	out := accounts{Keys: map[string][]string{}, Passwords: map[string]string{}}
	left := int64(maxAccountData)
	for _, w := range c.Wanted {
		folder := layout.AccessCredential(c.Folder, w.Secret)
		entries, err := secrets.Read(folder, &left)
		if err != nil {
			return accounts{}, err
		}
		if len(w.Users) == 0 {
			err = out.addPasswords(entries)
		} else {
			out.addKeys(entries, w.Users)
		}
		if err != nil {
			return accounts{}, err
		}
	}
	return out, nil
}

func (a *accounts) addKeys(entries []secrets.Entry, users []string) {
	for _, e := range entries {
		for _, key := range e.Keys() {
			for _, user := range users {
				if !slices.Contains(a.Keys[user], key) {
					a.Keys[user] = append(a.Keys[user], key)
				}
			}
		}
	}
	// A user whose last key was taken away gets an empty list.
	for _, user := range users {
		if a.Keys[user] == nil {
			a.Keys[user] = []string{}
		}
	}
}

func (a *accounts) addPasswords(entries []secrets.Entry) error {
	for _, e := range entries {
		password := strings.TrimSpace(string(e.Data))
		switch {
		case password == "":
			continue
		case len(e.Name) > maxUserName || !isAccountName(e.Name):
			return fmt.Errorf("a Secret's entry %.*q is no name of a user", maxUserName, e.Name)
		case len(password) > maxPassword || strings.ContainsAny(password, "\n\x00"):
			return fmt.Errorf("the password for user [%s] has several lines, or more than %d bytes", e.Name, maxPassword)
		}
		a.Passwords[e.Name] = password
	}
	if len(a.Passwords) > maxAccounts {
		return fmt.Errorf("the Secrets hold passwords for more than %d users", maxAccounts)
	}
	return nil
}

// digest returns the same for accounts that are the same.
func (a accounts) digest() [sha256.Size]byte {
	data, err := json.Marshal(a)
	if err != nil {
		panic(err) // plain data
	}
	return sha256.Sum256(data)
}

// apply lets the agent set each user's keys or password, also after it failed for another
// user. It returns the first failure, in KubeVirt's words, for the VMI's status. That text
// holds nothing of a key or a password. The error is that of an agent that does not answer.
func (a accounts) apply(ctx context.Context, client *guestagent.Client) (string, error) {
	failure := ""
	for _, user := range slices.Sorted(maps.Keys(a.Keys)) {
		err := client.SSHSetAuthorizedKeys(ctx, user, a.Keys[user])
		if silent(err) {
			return "", err
		}
		if err != nil {
			failure = cmp.Or(failure, fmt.Sprintf("Error encountered writing ssh pub key access credentials for user [%s]: %s", user, keysRefused(err, a.Keys[user])))
		}
	}
	for _, user := range slices.Sorted(maps.Keys(a.Passwords)) {
		err := client.SetUserPassword(ctx, user, a.Passwords[user])
		if silent(err) {
			return "", err
		}
		if err != nil {
			failure = cmp.Or(failure, fmt.Sprintf("Error encountered setting password for user [%s]: %s", user, refused(err)))
		}
	}
	return failure, nil
}

// refused returns an error that an agent refuses, but not why: the agent's text may repeat the key or
// password that it was given.
func refused(err error) string {
	var said *guestagent.Error
	switch {
	case !errors.As(err, &said):
		return guestagent.ErrReply.Error()
	case said.Class == "CommandNotFound":
		return "the guest agent has no " + said.Command + ", or it is disabled there"
	}
	return "the guest agent refuses it"
}

// quotedKey is how many characters of a key in an agent's text make it a quotation.
const quotedKey = 12

// keysRefused returns why an agent refuses keys, in the agent's words, which tell whether there
// is such a user. If a word is part of a key, keysRefused says only that the agent refuses.
func keysRefused(err error, keys []string) string {
	var said *guestagent.Error
	if !errors.As(err, &said) || said.Class == "CommandNotFound" {
		return refused(err)
	}
	for word := range strings.FieldsFuncSeq(said.Text, func(r rune) bool { return strings.ContainsRune(" '\"`,:;()[]{}<>\\", r) }) {
		if len(word) >= quotedKey && slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(key, word) }) {
			return refused(err)
		}
	}
	return said.Text
}

// propagate brings what the Secrets hold into the guest, if that is due. Its error says that
// the agent does not answer.
func (w *watch) propagate(ctx context.Context) error {
	if len(w.credentials.Wanted) == 0 || w.Report().Frozen {
		return nil
	}
	wanted, err := w.credentials.read()
	if err != nil {
		w.synchronized("Error encountered reading access credential secret: " + err.Error())
		return nil
	}
	digest := wanted.digest()
	if digest == w.given && time.Since(w.givenAt) < resyncInterval {
		return nil
	}
	failure, err := wanted.apply(ctx, w.client)
	if err != nil {
		if err := w.client.Ping(ctx); err != nil {
			return err
		}
		failure = "the guest agent did not answer in time"
	}
	if w.given, w.givenAt = digest, time.Now(); failure != "" {
		w.given = [sha256.Size]byte{} // so the next poll tries again
	}
	w.synchronized(failure)
	return nil
}

// synchronized reports the outcome of an attempt. An empty failure means success.
func (w *watch) synchronized(failure string) {
	was := w.Report().Credentials
	is := &control.CredentialsReport{Synchronized: failure == "", Message: failure}
	if was == nil || *was != *is {
		w.log.Info("access credentials", "synchronized", is.Synchronized, "message", is.Message)
	}
	w.update(func(r *control.AgentReport) { r.Credentials = is })
}
