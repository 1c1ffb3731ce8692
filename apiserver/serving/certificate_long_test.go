//go:build long

package serving

import (
	"testing"
	"time"
)

// TestRotatedCertificatesAreBelievedAtAllTimes is TestRotatedCertificatesAreBelieved with four times the looks.
func TestRotatedCertificatesAreBelievedAtAllTimes(t *testing.T) { rotate(t, 30*time.Minute) }
