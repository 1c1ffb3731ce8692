package main

import (
	"os"
	"testing"
)

// TestShippedProfileIsWhatIsPrinted: the file that is shipped is what the command prints.
func TestShippedProfileIsWhatIsPrinted(t *testing.T) {
	want, err := profile()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../../config/passt/passt.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("config/passt/passt.json is not what `make passt-profile` writes; its sum in controllers/node/seccomp changes with it")
	}
}
