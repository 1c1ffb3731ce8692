package v1

// The types below stand for fields of KubeVirt that would change what the guest sees and that
// Kubeqemu does not have yet. They are declared only to be refused by their path: for clients
// without strict validation, the API server would otherwise drop the fields in silence.

// Unsupported is a field of KubeVirt that is refused.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="false",message="not supported yet"
type Unsupported struct{}

// Never is a field of KubeVirt that is refused, and will be. The field's tag never says why.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="false",message="never supported; kubectl explain says why"
type Never struct{}

// NeverBool is a switch of KubeVirt that may only be off, and always will. The field's tag never says why.
//
// +kubebuilder:validation:XValidation:rule="!self",message="never supported; kubectl explain says why"
type NeverBool bool

// UnsupportedList is a list of KubeVirt that may only be empty.
//
// +listType=atomic
// +kubebuilder:validation:MaxItems=256
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="not supported yet"
type UnsupportedList []UnsupportedItem

// UnsupportedItem is an entry of an UnsupportedList.
//
// +kubebuilder:pruning:PreserveUnknownFields
type UnsupportedItem struct{}

// UnmarshalJSON takes anything, as the schema does. The field is refused as a whole, and a strict decoder
// must not call its parts unknown.
func (*Unsupported) UnmarshalJSON([]byte) error { return nil }

// UnmarshalJSON takes anything, as Unsupported's does.
func (*Never) UnmarshalJSON([]byte) error { return nil }

// UnmarshalJSON takes anything, as Unsupported's does.
func (*UnsupportedItem) UnmarshalJSON([]byte) error { return nil }

// UnsupportedString is a text of KubeVirt that may only be empty.
//
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="not supported yet"
type UnsupportedString string

// UnsupportedBool is a switch of KubeVirt that may only be off.
//
// +kubebuilder:validation:XValidation:rule="!self",message="not supported yet"
type UnsupportedBool bool
